"""Fetching of a run's files from its site, in requests of bounded size; a complete fetch is renamed into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from windlass.core.errors import NotFoundError, UnreachableError
from windlass.launcher.remote.client import Transport

__all__ = ["fetch"]

_TURN_BYTES = 8 << 20
_MAX_PIECES = 500


class _Entry(NamedTuple):
    path: str
    size: int
    mode: int
    mtime_ns: int
    link: str


def fetch(transport: Transport, root: PurePosixPath, name: str, target: Path, *, is_needed: bool = True) -> bool:
    """Fetch a file or folder of a run; return False if it is missing and optional.

    Files of an earlier or interrupted call are reused if their size and time match.

    Raises:
        NotFoundError: the required file is missing.
    """
    try:
        header, _ = transport.request("fetch", {"root": str(root), "under": name})
    except NotFoundError:
        if is_needed:
            raise
        return False
    entries = [_Entry(*fields) for fields in header["entries"]]
    fresh = target.with_name(f".{target.name}.part")
    for entry in entries:
        _prepare(_local(entry, name, fresh), _local(entry, name, target), entry)
    wanted = [entry for entry in entries if _is_wanted(entry, _local(entry, name, fresh))]
    for turn in _turns(wanted):
        _bring(transport, root, name, fresh, turn)
    _replace(fresh, target)
    return True


def _local(entry: _Entry, name: str, base: Path) -> Path:
    below = PurePosixPath(entry.path).relative_to(name)
    if ".." in below.parts:
        raise ValueError(f"the site sent {entry.path!r}")
    return base / below


def _prepare(path: Path, earlier: Path, entry: _Entry) -> None:
    """Create folders and links, and reuse unchanged files from an earlier fetch."""
    if entry.path.endswith("/"):
        path.mkdir(mode=entry.mode | 0o700, parents=True, exist_ok=True)
    elif entry.link:
        path.unlink(missing_ok=True)
        path.symlink_to(entry.link)
    elif not path.exists() and not _is_wanted(entry, earlier):
        os.link(earlier, path)


def _is_wanted(entry: _Entry, path: Path) -> bool:
    if entry.path.endswith("/") or entry.link:
        return False
    try:
        found = path.stat()
    except FileNotFoundError:
        return True
    return (found.st_size, found.st_mtime_ns) != (entry.size, entry.mtime_ns)


def _turns(entries: list[_Entry]) -> Iterator[list[tuple[_Entry, int, int]]]:
    """Yield lists of (file, offset, length) triples, each small enough for one reply."""
    turn: list[tuple[_Entry, int, int]] = []
    room = _TURN_BYTES
    for entry in entries:
        offset = 0
        while True:
            length = min(room, entry.size - offset)
            turn.append((entry, offset, length))
            offset, room = offset + length, room - length
            if room == 0 or len(turn) == _MAX_PIECES:
                yield turn
                turn, room = [], _TURN_BYTES
            if offset == entry.size:
                break
    if turn:
        yield turn


def _bring(
    transport: Transport, root: PurePosixPath, name: str, fresh: Path, turn: list[tuple[_Entry, int, int]]
) -> None:
    request = [(entry.path, offset, length) for entry, offset, length in turn]
    _, pieces = transport.request("fetch", {"root": str(root), "pieces": request})
    for (entry, offset, length), piece in zip(turn, pieces, strict=True):
        if len(piece) != length:
            message = f"{transport.name}: {entry.path} changed during the transfer"
            raise UnreachableError(message, hint="try again after the run has ended", code="invalid-reply")
        path = _local(entry, name, fresh)
        if offset == 0:
            path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, entry.mode | 0o600), "wb") as file:
            os.pwrite(file.fileno(), piece, offset)
        if offset + length == entry.size:
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def _replace(fresh: Path, target: Path) -> None:
    if fresh.is_dir() and target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(fresh, target)
        shutil.rmtree(old)
        return
    os.replace(fresh, target)
