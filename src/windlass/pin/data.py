"""Data pins: a file or a folder by the digest of its content.

A file's digest is the sha256 of its bytes. A folder's is the sha256 of its manifest: a line per entry, sorted by path,
`<mode> <size> <sha256> <path>`, with mode `-` plain, `x` executable, `l` symbolic link (size and digest of its text).
Names are escaped, so that any bytes in them are safe. Links must stay inside of the folder; empty folders do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass.core.errors import AccessError, NotFoundError, PreconditionError
from windlass.core.files import read_json, sha256_file, write_json

__all__ = ["DataPin", "check_data", "pin_data", "resolve_data"]

_SUPPORTED = "file:"
_RACY_NS = 2_000_000_000  # a file changed this shortly before it was read may change again with the same time
_HINT = "`data:` names a file or a folder, such as `file:data/prompts.jsonl`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPin:
    """An immutable reference to data: where it was, and the digest of what it held."""

    name: str
    source: str
    digest: str
    size_bytes: int
    kind: Literal["file", "folder"]
    num_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One line of a folder's manifest."""

    path: str
    mode: str
    size_bytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.mode} {self.size_bytes} {self.sha256} {_escape(self.path)}"


def pin_data(name: str, source: str, base: Path, *, cache: Path | None = None) -> DataPin:
    """Pin data by content; reads everything that the cache of digests does not know.

    Args:
        name: the key below `data:`; errors name it.
        source: `file:<path>`, relative to `base`.
        cache: folder for digests by (path, size, times, inode), so that the next pin reads only what changed.

    Raises:
        NotFoundError: nothing there.
        AccessError: something cannot be read.
        PreconditionError: another scheme, a link that leaves the folder, a pipe or a device.
    """
    path = resolve_data(name, source, base)
    entries, is_folder = _scan(name, path, cache)
    if not is_folder:
        return DataPin(
            name=name,
            source=source,
            digest=entries[0].sha256,
            size_bytes=entries[0].size_bytes,
            kind="file",
            num_files=1,
        )
    digest = _manifest_digest(entries)
    if cache is not None:
        _store_manifest(cache, digest, entries)
    size = sum(entry.size_bytes for entry in entries)
    return DataPin(name=name, source=source, digest=digest, size_bytes=size, kind="folder", num_files=len(entries))


def check_data(pin: DataPin, base: Path, *, cache: Path | None = None) -> None:
    """Read the data again and raise when it is not what was pinned, naming what changed.

    Args:
        cache: only used to name a folder's changed files (its manifest lies there); nothing is taken on trust.

    Raises:
        PreconditionError: `data-changed`.
        NotFoundError: it is gone.
    """
    path = resolve_data(pin.name, pin.source, base)
    entries, is_folder = _scan(pin.name, path, None)
    digest = _manifest_digest(entries) if is_folder else entries[0].sha256
    kind = "folder" if is_folder else "file"
    if (kind, digest) == (pin.kind, pin.digest):
        return
    raise PreconditionError(
        f"data `{pin.name}` ({path}) is not what was pinned: {_explain(pin, kind, entries, digest, cache)}",
        hint="restore it, or `windlass launch FILE` pins what is there now",
        code="data-changed",
    )


def resolve_data(name: str, source: str, base: Path) -> Path:
    """The path that a `file:` source names, links at its end followed."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", source)
    if scheme is None:
        raise PreconditionError(
            f"data `{name}`: `{source}` has no scheme",
            hint=f"write `file:{source}` for a local file or folder",
            code="data-scheme-unsupported",
        )
    if scheme.group(1) != "file":
        raise PreconditionError(
            f"data `{name}`: `{scheme.group(0)}` is not supported yet (`{source}`)",
            hint=f"supported today: {_SUPPORTED}; fetch it first and name the local path",
            code="data-scheme-unsupported",
        )
    text = source.removeprefix("file:")
    text = text.removeprefix("//") if text.startswith("///") else text
    if not text or "\0" in text:
        raise PreconditionError(f"data `{name}`: `{source}` names no path", hint=_HINT, code="data-missing")
    path = base / Path(text).expanduser()
    try:
        return path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"data `{name}`: no such file or folder: {os.path.normpath(path)}", hint=_HINT, code="data-missing"
        ) from error
    except (OSError, RuntimeError) as error:
        raise _unreadable(name, path, error) from error


def _scan(name: str, path: Path, cache: Path | None) -> tuple[list[_Entry], bool]:
    """Digest a file, or every file below a folder; says whether it is a folder."""
    status = os.stat(path)
    digests = _DigestCache.load(cache, path)
    if stat.S_ISDIR(status.st_mode):
        found = list(_walk(name, path, path))
    else:
        _check_regular(name, path, status)
        found = [(path, status)]
    from concurrent.futures import ThreadPoolExecutor  # lazy: brings `logging`; most runs pin no data

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        entries = list(pool.map(lambda item: _digest_entry(name, path, item[0], item[1], digests), found))
    digests.save()
    return sorted(entries, key=lambda entry: os.fsencode(entry.path)), stat.S_ISDIR(status.st_mode)


def _walk(name: str, root: Path, folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        children = sorted(os.scandir(folder), key=lambda child: child.name)
    except OSError as error:
        raise _unreadable(name, folder, error) from error
    for child in children:
        path, status = Path(child.path), child.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(name, root, path)
        else:
            _check_link(name, root, path) if stat.S_ISLNK(status.st_mode) else _check_regular(name, path, status)
            yield path, status


def _check_link(name: str, root: Path, path: Path) -> None:
    target = os.path.realpath(path)
    if target != str(root) and not target.startswith(f"{root}{os.sep}"):
        raise PreconditionError(
            f"data `{name}`: the link {path} leaves the folder (to {target})",
            hint="copy it with `cp -rL`, or name the folder that holds the files themselves",
            code="data-link-escapes",
        )
    if not os.path.exists(path):
        raise NotFoundError(
            f"data `{name}`: the link {path} points at nothing ({target})",
            hint="remove or mend the link",
            code="data-missing",
        )


def _check_regular(name: str, path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    raise PreconditionError(
        f"data `{name}`: {path} is {kinds.get(stat.S_IFMT(status.st_mode), 'no file')}, which has no content to pin",
        hint="keep only files, folders and links there",
        code="data-special-file",
    )


def _digest_entry(name: str, root: Path, path: Path, status: os.stat_result, digests: _DigestCache) -> _Entry:
    relative = "" if path == root else os.path.relpath(path, root)
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(os.readlink(path))
        return _Entry(path=relative, mode="l", size_bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
    digest = digests.get(relative, status)
    if digest is None:
        try:
            started_ns = time.time_ns()  # compared with file times, which come from the same wall clock
            digest = sha256_file(path)
            after = os.stat(path)
        except OSError as error:
            raise _unreadable(name, path, error) from error
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise PreconditionError(
                f"data `{name}`: {path} changed while it was read", hint="wait for its writer", code="data-changed"
            )
        digests.put(relative, status, digest, started_ns)
    return _Entry(
        path=relative, mode="x" if status.st_mode & stat.S_IXUSR else "-", size_bytes=status.st_size, sha256=digest
    )


def _unreadable(name: str, path: Path, error: Exception) -> AccessError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return AccessError(f"data `{name}`: cannot read {path}: {reason}", hint=f"ls -ld {path}", code="data-unreadable")


def _manifest_digest(entries: list[_Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(str(entry).encode() + b"\n")
    return digest.hexdigest()


def _escape(path: str) -> str:
    return json.dumps(os.fsencode(path).decode("utf-8", "backslashreplace"))[1:-1]


def _store_manifest(cache: Path, digest: str, entries: list[_Entry]) -> None:
    path = cache / "manifests" / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, [str(entry) for entry in entries], is_durable=False)


def _explain(pin: DataPin, kind: str, entries: list[_Entry], digest: str, cache: Path | None) -> str:
    if kind != pin.kind:
        return f"it was a {pin.kind} and is a {kind}"
    if kind == "file":
        now_bytes = entries[0].size_bytes
        return f"{pin.size_bytes} bytes, sha256 {pin.digest[:12]}..., now {now_bytes} bytes, sha256 {digest[:12]}..."
    stored = cache / "manifests" / f"{pin.digest}.json" if cache is not None else None
    if stored is None or not stored.is_file():
        size = sum(entry.size_bytes for entry in entries)
        return f"{pin.num_files} files, {pin.size_bytes} bytes, now {len(entries)} files, {size} bytes"
    lines = read_json(stored)
    before = {line.split(" ", 3)[3]: line for line in lines if isinstance(line, str)} if isinstance(lines, list) else {}
    now = {_escape(entry.path): str(entry) for entry in entries}
    changes = [f"{path} changed" for path in sorted(before.keys() & now.keys()) if before[path] != now[path]]
    changes += [f"{path} is gone" for path in sorted(before.keys() - now.keys())]
    changes += [f"{path} is new" for path in sorted(now.keys() - before.keys())]
    return ", ".join(changes[:10]) + (f" and {len(changes) - 10} more" if len(changes) > 10 else "")


class _DigestCache:
    """Digests of the files below one path, trusted while size, times and inode stay."""

    def __init__(self, path: Path | None, known: dict[str, list[object]]) -> None:
        self._path = path
        self._known = known
        self._fresh: dict[str, list[object]] = {}

    @classmethod
    def load(cls, cache: Path | None, root: Path) -> _DigestCache:
        """What is known about `root`; empty without a cache or when the cache file is not readable as one."""
        if cache is None:
            return cls(None, {})
        path = cache / "digests" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        try:
            known = read_json(path)
        except (OSError, ValueError):
            known = {}
        return cls(path, known if isinstance(known, dict) else {})

    def get(self, relative: str, status: os.stat_result) -> str | None:
        found = self._known.get(_escape(relative))
        if not isinstance(found, list) or found[:-1] != _stamp(status) or not isinstance(found[-1], str):
            return None
        self._fresh[_escape(relative)] = found
        return found[-1]

    def put(self, relative: str, status: os.stat_result, digest: str, read_at_ns: int) -> None:
        if max(status.st_mtime_ns, status.st_ctime_ns) < read_at_ns - _RACY_NS:
            self._fresh[_escape(relative)] = [*_stamp(status), digest]

    def save(self) -> None:
        """Keep what was seen now; files that are gone are forgotten."""
        if self._path is not None and self._fresh != self._known:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, self._fresh, is_durable=False)


def _stamp(status: os.stat_result) -> list[object]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
