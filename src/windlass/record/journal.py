"""Journal of a run: a folder with one append-only file per writer.

A writer truncates a torn tail when it opens its file, holds a lock on it while it lives, and appends each record with
one write. A reader follows all files in the folder and returns new records.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

from windlass.core.clock import Clock
from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory, refresh_folder, take_lock
from windlass.record.frames import Record, encode, read_frames
from windlass.record.shapes import is_well_formed

__all__ = ["SUFFIX", "JournalReader", "JournalWriter", "read_journal"]

SUFFIX = ".wj"
_RESERVE_BYTES = 64 * 1024
_LOCK_WAIT_S = 5.0
_TOUCH_EVERY_S = 60.0
_LIST_EVERY_S = 5.0
_SETTLED_NS = 2_000_000_000


class JournalWriter:
    """Writer of a journal, which appends records to its own file.

    Args:
        folder: the run's journal folder; created if missing.
        writer: the file's name; no other live process may use it.
        has_reserve: reserve 64 KiB on disk, freed when the disk is full, so that the end can still be recorded.

    Raises:
        PreconditionError: another process writes the file (`in-use`), or it cannot be locked (`no-file-locks`).
    """

    def __init__(self, folder: Path, writer: str, clock: Clock, *, has_reserve: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.writer = writer
        self._clock = clock
        self._path = folder / (writer + SUFFIX)
        self._reserve = folder / f".{writer}.reserve"
        self._file = os.open(str(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock()
        content = self._path.read_bytes()
        records, self._end, _ = read_frames(content)
        if self._end < len(content):
            os.ftruncate(self._file, self._end)
        self.seq = records[-1].seq if records else 0
        self._is_new = not records
        self._touched_at = float("-inf")
        if has_reserve and not self._reserve.exists():
            self._make_reserve()

    def _lock(self) -> None:
        for _ in range(int(_LOCK_WAIT_S / 0.05)):
            try:
                take_lock(self._file, self._path)
                return
            except BlockingIOError:
                time.sleep(0.05)
            except (OSError, PreconditionError):
                os.close(self._file)
                raise
        os.close(self._file)
        raise PreconditionError(f"{self._path} is being written by another process", code="in-use")

    def _make_reserve(self) -> None:
        try:
            self._reserve.write_bytes(b"\0" * _RESERVE_BYTES)
        except OSError:
            os.close(self._file)
            raise

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        """Append one record; it is on disk when this returns, unless `is_durable` is False.

        Raises:
            OSError: the disk is full and the reserve is spent, or the file cannot be written; nothing was appended.
        """
        record = Record(kind, self.writer, self.seq + 1, self._clock.now(), data)
        line = encode(record)
        try:
            self._write(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._reserve.exists():
                raise
            self._reserve.unlink()
            self._write(line)
        self.seq += 1
        self._end += len(line)
        if is_durable:
            self._touch()
            os.fdatasync(self._file)
        return record

    def _touch(self) -> None:
        """Make the file's name durable, and update the folder's time, which the index of runs checks first."""
        if self._is_new:
            fsync_directory(self._path.parent)
            self._is_new = False
        if self._clock.monotonic() - self._touched_at >= _TOUCH_EVERY_S:
            self._touched_at = self._clock.monotonic()
            with contextlib.suppress(OSError):
                os.utime(str(self._path.parent))

    def _write(self, line: bytes) -> None:
        try:
            num_written = os.pwrite(self._file, line, self._end)
            if num_written != len(line):
                raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
        except OSError:
            os.ftruncate(self._file, self._end)
            raise

    def sync(self) -> None:
        """Sync everything appended so far to disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._file)
        if self._reserve.exists():
            self._reserve.unlink()


class JournalReader:
    """Reader that follows a journal folder; each record is returned once, in file order for each writer.

    Args:
        prefix: read only writers whose name has this prefix.
        skip: kinds to skip without parsing.
    """

    def __init__(self, folder: Path, *, prefix: str = "", skip: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._prefix = prefix
        self._skip = skip
        self._offsets: dict[str, int] = {}
        self._names: list[str] = []
        self._listed: tuple[int, float] = (-1, float("-inf"))
        self._num_passed_over = 0
        self._num_at_end: dict[str, int] = {}

    @property
    def num_damaged(self) -> int:
        """Return how many lines, records and files were skipped because they are damaged or unreadable.

        Damaged lines at the end of a file count too; a torn tail, which has no newline, does not.
        """
        return self._num_passed_over + sum(self._num_at_end.values())

    def poll(self, *, is_fresh: bool = False) -> list[Record]:
        """Return the records appended since the last call; if there are none, this takes one stat per writer.

        Args:
            is_fresh: bypass the caches of a network file system client, which keeps listings and sizes for up to a
                minute; this changes the folder and opens every file, so that the client asks the server.

        Raises:
            PreconditionError: the journal is not a folder (`run-damaged`).
        """
        found: list[Record] = []
        try:
            if is_fresh:
                with contextlib.suppress(OSError):  # a full disk: the files can still be read
                    refresh_folder(self._folder, f".probe-{os.uname().nodename}-{os.getpid()}")
            names = self._list(is_fresh)
        except FileNotFoundError:
            return found
        except NotADirectoryError as error:
            raise PreconditionError(
                f"the journal {self._folder} is not a folder",
                hint="restore the run's folder from a copy",
                code="run-damaged",
            ) from error
        for name in names:
            try:
                found.extend(self._read_new(name, is_fresh))
            except FileNotFoundError:
                continue
            except OSError:  # a folder, or no permission: other files can still be read
                self._num_at_end[name] = 1
        return found

    def _list(self, is_fresh: bool) -> list[str]:
        """Return the files to follow.

        A folder is listed again only if it changed, since that takes long for a big gang.

        Two changes within one tick of the file system's clock look like one, so a recently changed folder is listed again.
        """
        changed_ns, now = os.stat(str(self._folder)).st_mtime_ns, time.monotonic()
        known_ns, listed_at = self._listed
        if is_fresh or changed_ns != known_ns or now > listed_at + _LIST_EVERY_S:
            names = os.listdir(str(self._folder))
            self._names = sorted(name for name in names if name.endswith(SUFFIX) and name.startswith(self._prefix))
            is_settled = time.time_ns() > changed_ns + _SETTLED_NS
            self._listed = (changed_ns if is_settled else -1, now)
        return self._names

    def _read_new(self, name: str, is_fresh: bool) -> list[Record]:
        offset, path = self._offsets.get(name, 0), os.path.join(str(self._folder), name)
        if not is_fresh and os.stat(path).st_size <= offset:
            return []
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read()
        if not content:
            return []
        records, end, num_damaged = read_frames(content, skip=self._skip)
        whole = [record for record in records if is_well_formed(record)]
        self._offsets[name] = offset + end
        self._num_at_end[name] = content.count(b"\n", end)
        self._num_passed_over += num_damaged + len(records) - len(whole)
        return whole


def read_journal(folder: Path, *, skip: tuple[str, ...] = ()) -> list[Record]:
    """Return all records in a journal folder, except those whose kind is in `skip`."""
    return JournalReader(folder, skip=skip).poll()
