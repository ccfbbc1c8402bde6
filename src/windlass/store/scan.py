"""Scan of a local file or folder, which gives the entries of a version."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from windlass.core.errors import AccessError, NotFoundError, PreconditionError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.store.data_version import VersionEntry, escape
from windlass.store.reading import in_batches, sha256_of

__all__ = ["Reader", "scan", "unreadable"]

Reader = Callable[[str, int, "str | None"], str]
"""Callback with a file, its mode and its known digest, if any; returns the digest."""

_RACY_NS = 2_000_000_000  # a file that changed this recently may change again without a new timestamp


def scan(
    what: str, path: Path, *, cache: Path | None = None, read: Reader | None = None
) -> tuple[list[VersionEntry], bool]:
    """Return the sorted entries for a file or folder, and whether it is a folder. Blocks.

    Args:
        what: subject of messages, such as "data `prompts`".
        cache: folder of digests by (path, size, times, inode), so that a later scan reads only changed files.
        read: digests a file, in several threads; by default, files that are not in `cache` are read.

    Raises:
        AccessError: a file cannot be read.
        NotFoundError: a link is broken.
        PreconditionError: a link leaves the folder, a pipe or a device is found, or a file changes during the scan.
    """
    status = os.stat(path)
    digests = _DigestCache.load(cache, path)
    if stat.S_ISDIR(status.st_mode):
        found = list(_walk(what, path, os.fspath(path)))
    else:
        _check_regular(what, os.fspath(path), status)
        found = [(os.fspath(path), status)]
    entries = in_batches(
        found,
        lambda item: item[1].st_size,
        lambda item: _digest_entry(what, os.fspath(path), item[0], item[1], digests, read),
    )
    digests.save()
    return sorted(entries, key=lambda entry: os.fsencode(entry.path)), stat.S_ISDIR(status.st_mode)


def unreadable(what: str, path: Path | str, error: Exception) -> AccessError:
    """Return the error for an unreadable file."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return AccessError(f"{what}: cannot read {path}: {reason}", hint=f"ls -ld {path}", code="file-unreadable")


def _walk(what: str, root: Path, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below a folder, with its path as text, which costs less than a Path object."""
    try:
        children = sorted(os.scandir(folder), key=lambda child: child.name)
    except OSError as error:
        raise unreadable(what, folder, error) from error
    for child in children:
        path, status = child.path, child.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(what, root, path)
        else:
            _check_link(what, root, path) if stat.S_ISLNK(status.st_mode) else _check_regular(what, path, status)
            yield path, status


def _check_link(what: str, root: Path, path: str) -> None:
    target = os.path.realpath(path)
    if target != str(root) and not target.startswith(f"{root}{os.sep}"):
        raise PreconditionError(
            f"{what}: the link {path} points outside the folder (to {target})",
            hint="copy the data with `cp -rL`, or use the folder with the files themselves",
            code="special-file",
        )
    if not os.path.exists(path):
        raise NotFoundError(
            f"{what}: broken link {path} (to {target})", hint="remove or repair the link", code="file-not-found"
        )


def _check_regular(what: str, path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    raise PreconditionError(
        f"{what}: {path} is {kinds.get(stat.S_IFMT(status.st_mode), 'a special file')}, which cannot be pinned",
        hint="keep only files, folders and links in the data",
        code="special-file",
    )


def _digest_entry(
    what: str, root: str, path: str, status: os.stat_result, digests: _DigestCache, read: Reader | None
) -> VersionEntry:
    relative = "" if path == root else path[len(root.rstrip("/")) + 1 :]
    if stat.S_ISLNK(status.st_mode):
        link = os.readlink(path)
        text = os.fsencode(link)
        return VersionEntry(
            path=relative, mode="l", size_bytes=len(text), sha256=hashlib.sha256(text).hexdigest(), link=link
        )
    known = digests.get(relative, status)
    digest = known
    if known is None or read is not None:
        started_ns = time.time_ns()  # compared with file times, which use the same wall clock
        try:
            digest = sha256_of(path) if read is None else read(path, status.st_mode, known)
            after = os.stat(path)
        except OSError as error:
            is_ours = error.filename is None or str(error.filename) == path
            if not is_ours or error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # a write error, not a read error
            raise unreadable(what, path, error) from error
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise PreconditionError(
                f"{what}: {path} changed while it was read",
                hint="wait until it is written completely",
                code="input-changed",
            )
        digests.put(relative, status, digest, started_ns)
    assert digest is not None
    mode = "x" if status.st_mode & stat.S_IXUSR else "-"
    return VersionEntry(path=relative, mode=mode, size_bytes=status.st_size, sha256=digest)


class _DigestCache:
    """Cache for digests of the files below a path; a digest is valid while size, times and inode are unchanged."""

    def __init__(self, path: Path | None, known: dict[str, list[object]]) -> None:
        self._path = path
        self._known = known
        self._fresh: dict[str, list[object]] = {}

    @classmethod
    def load(cls, cache: Path | None, root: Path) -> _DigestCache:
        """Load the digests below `root`; empty if there is no valid cache file."""
        if cache is None:
            return cls(None, {})
        path = cache / "digests" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        try:
            known = read_json(path)
        except (OSError, ValueError):
            known = {}
        return cls(path, known if isinstance(known, dict) else {})

    def get(self, relative: str, status: os.stat_result) -> str | None:
        if not self._known:
            return None
        found = self._known.get(escape(relative))
        if not isinstance(found, list) or found[:-1] != _stamp(status) or not isinstance(found[-1], str):
            return None
        self._fresh[escape(relative)] = found
        return found[-1]

    def put(self, relative: str, status: os.stat_result, digest: str, read_at_ns: int) -> None:
        if self._path is not None and max(status.st_mtime_ns, status.st_ctime_ns) < read_at_ns - _RACY_NS:
            self._fresh[escape(relative)] = [*_stamp(status), digest]

    def save(self) -> None:
        """Save the digests from this scan, without those of removed files."""
        if self._path is not None and self._fresh != self._known:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, self._fresh, is_durable=False)


def _stamp(status: os.stat_result) -> list[object]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
