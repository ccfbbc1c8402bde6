"""Machine of a cluster as seen over a shell: its agent is installed, started, asked and ended here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json, decode_object
from windlass.core.process import ProcessId
from windlass.supervise.node.container import NOT_REMOVED
from windlass.supervise.node.spec import NodeSpec, NodeStatus

__all__ = ["NodeHost", "in_parallel"]

T = TypeVar("T")
R = TypeVar("R")

_FOLDER = ".windlass/clusters"
_MAX_PARALLEL = 32
_UPLOAD_S = 300.0
_START_S = 120.0
_NOT_STORED, _NO_ARCHIVE = 44, 45

# Stores standard input as a file, whole or not at all: $1 folder, $2 name, $3 SHA-256.
_STORE = """umask 077; mkdir -p "$1" && cat > "$1/.$2.$$" && \
[ "$(sha256sum < "$1/.$2.$$" | cut -c1-64)" = "$3" ] && mv -f "$1/.$2.$$" "$1/$2" || { rm -f "$1/.$2.$$"; exit 44; }"""

# The same, and then starts a node's agent in that folder: $4 the archive, $5 Python.
_START = f"""[ -s "$4" ] || exit {_NO_ARCHIVE}; {_STORE}; exec "$5" -I -S "$4" node-start "$1\""""

# Prints a node's status once it is not what standard input says, at the latest after $2 tenths of a second: $1 its path.
_FOLLOW = """old=$(cat); n=0; while s=; [ ! -f "$1" ] || IFS= read -r s < "$1" || :; \
[ "$s" = "$old" ] && [ $n -lt "$2" ]; do sleep 0.1; n=$((n + 1)); done; printf %s "$s\""""

# Prints a node's status, this boot, and the process that the status names as proc(5) has it: $1 the status's path.
_AGENT = """s=; [ ! -f "$1" ] || IFS= read -r s < "$1" || :; printf '%s\\n' "$s"; \
cut -c1-8 /proc/sys/kernel/random/boot_id; p=${s#*\\"process\\": \\"}; p=${p%%:*}; \
case "$p" in ''|*[!0-9]*) ;; *) cat "/proc/$p/stat" 2>/dev/null || true;; esac"""

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

    def agent(self, token: str) -> tuple[NodeStatus | None, bool]:
        """Return what the agent of a node last said, and whether that agent still runs, on this boot of the machine.

        Raises:
            UnreachableError: no connection.
        """
        answer = self.shell.run(["sh", "-c", _AGENT, "sh", f"{self.folder(token)}/status.json"])
        if answer.code:
            raise PreconditionError(f"{self.shell.name}: {answer.err.strip()[-200:]}", code="invalid-reply")
        said, _, rest = answer.out.partition("\n")
        boot, _, process = rest.partition("\n")
        status = self._status(said)
        return status, status is not None and _is_alive(status.process, boot, process)

    def follow(self, token: str, *, wait_s: float = 2.0) -> Iterator[NodeStatus | None]:
        """Yield what the agent of a node says: now, when it is something else, and at the latest after `wait_s`.

        The machine waits, not this process: a question for each look would cost it more than the node's start.

        Raises:
            UnreachableError: no connection.
        """
        path, said = f"{self.folder(token)}/status.json", ""
        while True:
            argv = ["sh", "-c", _FOLLOW, "sh", path, f"{10 * wait_s:.0f}"]
            answer = self.shell.run(argv, stdin=said.encode())
            if answer.code:
                raise PreconditionError(f"{self.shell.name}: {answer.err.strip()[-200:]}", code="invalid-reply")
            said = answer.out
            yield self._status(said)

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
        digest = sha256_file(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()
        argv = ["sh", "-c", _STORE, "sh", folder, name, digest]
        answer = self.shell.run(argv, stdin=content, timeout_s=_UPLOAD_S)
        if answer.code:
            raise self._not_stored(f"{folder}/{name}", answer)

    def _not_stored(self, path: str, answer: ShellResult) -> PreconditionError:
        message = f"{self.shell.name}: cannot store {path}: {answer.err.strip()[-200:] or 'cut short'}"
        return PreconditionError(message, hint="is its disk full?", code="invalid-reply")

    def start(self, spec: NodeSpec, archive: Path, python: str = "python3") -> None:
        """Start a node's agent; returns when it runs. Idempotent, and one command unless the machine lacks the zipapp."""
        content, folder, there = spec.to_json(), self.folder(spec.token), f"{_FOLDER}/{archive.name}"
        words = (folder, "spec.json", hashlib.sha256(content).hexdigest(), there, python)
        argv = ["sh", "-c", _START, "sh", *words]
        answer = self.shell.run(argv, stdin=content, timeout_s=_START_S)
        if answer.code == _NO_ARCHIVE:
            self.store_file(_FOLDER, archive.name, archive)
            answer = self.shell.run(argv, stdin=content, timeout_s=_START_S)
        if answer.code == _NOT_STORED:
            raise self._not_stored(f"{folder}/spec.json", answer)
        self._check_agent(answer, python, "node-start")

    def stop(self, token: str, archive: Path, python: str = "python3") -> None:
        """End a node: returns when none of its processes is alive, and its claim is gone. Idempotent.

        Raises:
            UnreachableError: no connection.
            PreconditionError: its container is still there (`engine-failed`), or it could not be ended.
        """
        there = self.ensure_archive(archive)
        answer = self.shell.run([python, "-I", "-S", there, "node-stop", self.folder(token)], timeout_s=_START_S)
        if answer.code == NOT_REMOVED:
            reason, command = answer.err.strip().splitlines()[-2:]
            hint = f"type `ssh {self.shell.name} {command}`, which says more, then the same command again"
            raise PreconditionError(f"{self.shell.name}: {reason}", hint=hint, code="engine-failed")
        self._check_agent(answer, python, "node-stop")
        self.shell.run(["rm", "-f", f"{self.folder(token)}/claim.json"])

    def _check_agent(self, answer: ShellResult, python: str, verb: str) -> None:
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


def _is_alive(process: str, boot: str, found: str) -> bool:
    """Return whether a process of a status is the one that proc(5) has of its number in the machine's present boot."""
    try:
        known = ProcessId.parse(process)
        fields = found.rpartition(")")[2].split()
        return known.world.partition(".")[0] == boot and fields[0] not in "ZX" and int(fields[19]) == known.start_ticks
    except (ValueError, IndexError):
        return False


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
