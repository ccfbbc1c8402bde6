"""Machine of a cluster as seen over a shell: its agent is installed, started, asked and ended here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from windlass.backends.site_shell import SiteShell
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json, decode_object
from windlass.supervise.node.spec import NodeSpec, NodeStatus

__all__ = ["NodeHost", "in_parallel"]

T = TypeVar("T")
R = TypeVar("R")

_FOLDER = ".windlass/clusters"
_MAX_PARALLEL = 32
_UPLOAD_S = 300.0

# Stores standard input as a file, whole or not at all: $1 folder, $2 name, $3 SHA-256.
_STORE = """umask 077; mkdir -p "$1" && cat > "$1/.$2.$$" && \
[ "$(sha256sum < "$1/.$2.$$" | cut -c1-64)" = "$3" ] && mv -f "$1/.$2.$$" "$1/$2" || { rm -f "$1/.$2.$$"; exit 1; }"""

# Prints the claims of a cluster on this machine, one line each: claim, tab, status.
_LIST = """cd "$HOME/.windlass/clusters" 2>/dev/null || exit 0; for d in "$1"/*/; do [ -f "$d/claim.json" ] || continue; \
tr -d '\\n\\t' < "$d/claim.json"; printf '\\t'; tr -d '\\n\\t' < "$d/status.json" 2>/dev/null; echo; done"""


@dataclass(frozen=True, slots=True)
class NodeHost:
    """A machine with a shell, and a cluster's part of it.

    Attributes:
        cluster: id of the cluster.
    """

    shell: SiteShell
    cluster: str

    def folder(self, token: str) -> str:
        """Return a node's folder, below the user's home."""
        return f"{_FOLDER}/{self.cluster}/{token}"

    def claims(self) -> list[tuple[dict[str, object], NodeStatus | None]]:
        """Return what the cluster claimed on this machine, with the agents' own words.

        Raises:
            UnreachableError: no connection.
        """
        answer = self.shell.run(["sh", "-c", _LIST, "sh", self.cluster])
        if answer.code:
            raise PreconditionError(f"{self.shell.name}: {answer.err.strip()[-200:]}", code="invalid-reply")
        found = []
        for line in answer.out.splitlines():
            claim, _, status = line.partition("\t")
            found.append((self._read(claim, _claim), self._status(status)))
        return found

    def status(self, token: str) -> NodeStatus | None:
        """Return what the agent of a node last said; None if it never did.

        Raises:
            UnreachableError: no connection.
        """
        path = f"{self.folder(token)}/status.json"
        answer = self.shell.run(["sh", "-c", 'cat "$1" 2>/dev/null || true', "sh", path])
        if answer.code:
            raise PreconditionError(f"{self.shell.name}: {answer.err.strip()[-200:]}", code="invalid-reply")
        return self._status(answer.out)

    def _status(self, text: str) -> NodeStatus | None:
        return self._read(text, lambda text: NodeStatus.from_data(decode_json(text))) if text.strip() else None

    def _read(self, text: str, read: Callable[[str], R]) -> R:
        """Return what a function reads in a reply; raises PreconditionError if it cannot."""
        try:
            return read(text)
        except (ValueError, TypeError) as error:
            raise PreconditionError(f"{self.shell.name}: invalid reply: {error}", code="invalid-reply") from error

    def store(self, token: str, name: str, content: bytes | Path) -> None:
        """Write a file of a node's folder."""
        self.store_file(self.folder(token), name, content)

    def ensure_archive(self, archive: Path) -> str:
        """Upload the zipapp unless it is there; return its path on the machine."""
        path = f"{_FOLDER}/{archive.name}"
        if self.shell.run(["test", "-s", path]).code:
            self.store_file(_FOLDER, archive.name, archive)
        return path

    def store_file(self, folder: str, name: str, content: bytes | Path) -> None:
        """Write a file, whole or not at all, that only the user can read; the folder is below the user's home."""
        import hashlib

        digest = sha256_file(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()
        argv = ["sh", "-c", _STORE, "sh", folder, name, digest]
        answer = self.shell.run(argv, stdin=content, timeout_s=_UPLOAD_S)
        if answer.code:
            message = f"{self.shell.name}: cannot store {folder}/{name}: {answer.err.strip()[-200:] or 'cut short'}"
            raise PreconditionError(message, hint="is its disk full?", code="invalid-reply")

    def start(self, spec: NodeSpec, archive: Path, python: str = "python3") -> None:
        """Start a node's agent; returns when it runs. Idempotent."""
        there = self.ensure_archive(archive)
        self.store(spec.token, "spec.json", spec.to_json())
        self._agent(python, there, "node-start", spec.token)

    def stop(self, token: str, archive: Path, python: str = "python3") -> None:
        """End a node: returns when none of its processes is alive, and its claim is gone. Idempotent."""
        there = self.ensure_archive(archive)
        self._agent(python, there, "node-stop", token)
        self.shell.run(["rm", "-f", f"{self.folder(token)}/claim.json"])

    def _agent(self, python: str, archive: str, verb: str, token: str) -> None:
        answer = self.shell.run([python, "-I", "-S", archive, verb, self.folder(token)], timeout_s=120.0)
        if answer.code:
            last = (answer.err.strip().splitlines() or ["no output"])[-1]
            message = f"{self.shell.name}: `{verb}` failed: {last}"
            raise PreconditionError(message, hint=f"ssh {self.shell.name} {python} --version", code="node-failed")


def _claim(text: str) -> dict[str, object]:
    """Decode a claim: its group, its token and its time; raises ValueError or TypeError if it is something else."""
    data = decode_object(text)
    missing = sorted({"group", "token", "at"} - data.keys())
    if missing:
        raise ValueError(f"a claim without `{missing[0]}`")
    return {**data, "at": float(data["at"])}


def in_parallel(items: Sequence[T], do: Callable[[T], R]) -> list[R | WindlassError]:
    """Return what a function returns for each item, or the error that it raised; order is kept."""

    def caught(item: T) -> R | WindlassError:
        try:
            return do(item)
        except WindlassError as error:
            return error

    if not items:
        return []
    with ThreadPoolExecutor(max_workers=min(len(items), _MAX_PARALLEL)) as pool:
        return list(pool.map(caught, items))
