"""Site's side of a mirror: sends new content of a run's folder to a client, and appends the client's.

All these files only grow, and each has one writer. So an offset describes the state of a copy, and repeating a request
changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import fsync_directory, take_lock, write_atomic
from windlass.record.frames import decode
from windlass.record.journal import SUFFIX
from windlass.supervise.logs.index import RECORD_BYTES
from windlass.supervise.remote.framing import unpack

__all__ = ["below", "exchange_news", "fetch_files", "whole_end"]

_Answer = tuple[dict[str, Any], list[bytes]]


def whole_end(content: bytes) -> int:
    """Return the end of the last complete record in a piece of a journal; the rest may be truncated."""
    end = content.rfind(b"\n") + 1
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        if decode(content[start:end]) is not None:
            break
        end = start
    return end


def exchange_news(source: BinaryIO) -> _Answer:
    """Exchange new content with a client once. The request's header has:

    `root`: the run's folder. `appends`: [path, offset] of each piece to append to a journal file of the client. `puts`:
    paths of the pieces after those, small files written whole. `own`: names of the client's journal files. `sizes`: sizes
    of the client's copies of other files; None if it needs nothing. `logs`: whether it needs logs, except the folders
    `closed`. `limit`: maximum bytes of the answer. The files of a job's links are sent with the journal.

    The answer: `own`: sizes of the client's files here. `deltas`: [path, offset] of each piece. `more`: whether the limit
    held anything back. The journal is read before the logs: the output of an attempt arrives with its end.

    Raises:
        NotFoundError: there is no such run here.
        ValueError: the request is not complete; nothing was done.
    """
    header, pieces = unpack(source.read())
    root = Path(header["root"])
    if not (root / "journal").is_dir():
        raise NotFoundError(
            f"no run in {root}", hint="check whether its folder was removed at the site", code="run-gone-at-site"
        )
    appends = header["appends"]
    for (path, offset), piece in zip(appends, pieces):
        _append(below(root, path), offset, piece)
    for path, piece in zip(header["puts"], pieces[len(appends) :]):
        target = below(root, path)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(target, piece, mode=0o600)
    own = {name: _size(below(root, f"journal/{name}")) for name in header["own"]}
    answer: dict[str, Any] = {"own": own, "deltas": [], "more": False}
    return answer, [] if header["sizes"] is None else _news(root, header, answer)


def _append(path: Path, offset: int, piece: bytes) -> None:
    """Append the part of a piece that is missing in the file; do nothing if there would be a gap before `offset`.

    Raises:
        PreconditionError: the existing content differs.
    """
    is_new = not path.exists()
    with open(os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
        take_lock(file.fileno(), path, waits=True)
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            return
        existing = os.pread(file.fileno(), len(piece), offset)
        if piece[: len(existing)] != existing:
            raise PreconditionError(
                f"{path} was changed after it was written", hint="restore it from the client's copy", code="run-damaged"
            )
        rest = piece[len(existing) :]
        try:
            if rest and os.pwrite(file.fileno(), rest, size) != len(rest):
                raise OSError(28, os.strerror(28), str(path))
            os.fdatasync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise
    if is_new:
        fsync_directory(path.parent)
    with contextlib.suppress(OSError):
        os.utime(str(path.parent))


def _news(root: Path, header: dict[str, Any], answer: dict[str, Any]) -> list[bytes]:
    pieces = []
    room = int(header["limit"])
    for path in _candidates(root, header):
        offset = int(header["sizes"].get(path, 0))
        piece, is_cut = _grown(root / path, offset, room)
        answer["more"] = answer["more"] or is_cut
        if piece:
            answer["deltas"].append([path, offset])
            pieces.append(piece)
            room -= len(piece)
    return pieces


def _candidates(root: Path, header: dict[str, Any]) -> Iterator[str]:
    own = set(header["own"])
    for name in _names(root / "journal"):
        if name.endswith(SUFFIX) and not name.startswith(".") and name not in own:
            yield f"journal/{name}"
    for job in _names(root / "jobs"):
        for name in _names(root / "jobs" / job):
            if name.startswith("link-") and name.endswith(".json"):  # names the scheduler's job of a link
                yield f"jobs/{job}/{name}"
    if not header["logs"]:
        return
    closed = set(header["closed"])
    for attempt in _names(root / "logs"):
        for task in _names(root / "logs" / attempt):
            if f"{attempt}/{task}" not in closed:
                for name in _names(root / "logs" / attempt / task):
                    if name.endswith((".log", ".log.idx")):
                        yield f"logs/{attempt}/{task}/{name}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(str(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _grown(path: Path, offset: int, room: int) -> tuple[bytes, bool]:
    """Return the content after `offset`, up to its last complete record, and whether the limit truncated it."""
    size = _size(path)
    if size <= offset:
        return b"", False
    with open(str(path), "rb") as file:
        file.seek(offset)
        piece = file.read(min(room, size - offset))
    is_cut = len(piece) < size - offset
    if path.name.endswith(SUFFIX):
        piece = piece[: whole_end(piece)]
    elif path.name.endswith(".idx"):
        piece = piece[: len(piece) - (offset + len(piece)) % RECORD_BYTES]
    return piece, is_cut


def _size(path: Path) -> int:
    try:
        return os.stat(str(path)).st_size
    except FileNotFoundError:
        return 0


def below(root: Path, path: str) -> Path:
    """Return the absolute path for a path in a request; raises ValueError if it is outside the run's folder."""
    if os.path.isabs(path) or ".." in Path(path).parts:
        raise ValueError(f"{path!r} is outside the run's folder")
    return root / path


def fetch_files(source: BinaryIO) -> _Answer:
    """Return pieces of a run's files. The request's header has `root` and one of these:

    `under`: a file or folder; the answer's `entries` are [path, size, mode, mtime_ns, link] of everything in it. `pieces`:
    [path, offset, length] of each requested piece; the answer has a piece for each, shorter at a file's end.

    Raises:
        NotFoundError: there is no such file.
    """
    header, _ = unpack(source.read())
    root = Path(header["root"])
    if "under" in header:
        return {"entries": list(_entries(root, below(root, header["under"])))}, []
    pieces = []
    for path, offset, length in header["pieces"]:
        with open(str(below(root, path)), "rb") as file:
            pieces.append(os.pread(file.fileno(), length, offset))
    return {}, pieces


def _entries(root: Path, path: Path) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield everything at and below a path, folders before their content; links are not followed."""
    name = path.relative_to(root).as_posix()
    try:
        found = os.lstat(str(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"no {name} in {root}", code="not-found") from error
    if path.is_symlink():
        yield name, 0, 0, 0, os.readlink(str(path))
    elif path.is_dir():
        yield name + "/", 0, found.st_mode & 0o777, 0, ""
        for child in _names(path):
            yield from _entries(root, path / child)
    elif path.is_file():
        yield name, found.st_size, found.st_mode & 0o777, found.st_mtime_ns, ""
