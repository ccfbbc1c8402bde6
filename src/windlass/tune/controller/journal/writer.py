"""Writer of a sweep's journal: locks the file as the head's lease, truncates incomplete records, groups commits.

Records are collected and written with one write before the commands that follow from them are sent. They are synced
to disk at most every 50 ms, and before anything irreversible.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.core.clock import Clock
from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory, take_lock, write_json
from windlass.core.json_text import read_json
from windlass.record.frames import Record, frame
from windlass.tune.controller.journal.stream import JournalStream
from windlass.tune.errors import BadValueError
from windlass.tune.folder import HEAD, SweepFolder

__all__ = ["HeadJournal"]

_SYNC_EVERY_S = 0.05
_LEASE_WAIT_S = 5.0
_LEASE_PAUSE_S = 0.05
_to_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class HeadJournal:
    """Exclusive writer of a sweep's journal: while it exists, no other process can write.

    Call `read` first: it finds the end of the journal, where a torn tail is cut.

    Raises:
        PreconditionError: another head has the lease (`in-use`), the file system has no locks, or the folder
            is not writable (`not-writable`).
    """

    def __init__(self, folder: SweepFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._path = folder.head_journal
        try:
            folder.journal.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PreconditionError(
                f"cannot write to the sweep's folder {folder.path}: {error.strerror}",
                hint="choose another folder: RunConfig(storage_path=...), or WINDLASS_HOME",
                code="not-writable",
            ) from error
        try:
            self._take_lease()
        except BaseException:
            os.close(self._file)
            raise
        self._close_in_forks()
        self.end = 0
        self.seq = 0
        self.last_at = 0.0
        self._lines: list[bytes] = []
        self._is_dirty = False
        self._synced_at = float("-inf")
        self._zero = (0.0, 0.0)
        self._note: dict[str, Any] = {"host": os.uname().nodename, "pid": os.getpid()}

    def _take_lease(self) -> None:
        for attempt in range(int(_LEASE_WAIT_S / _LEASE_PAUSE_S)):
            with contextlib.suppress(BlockingIOError):
                take_lock(self._file, self._path)
                return
            if attempt == 0 and self._head_lives_here():
                break
            time.sleep(_LEASE_PAUSE_S)  # a killed head keeps its lock until its last child has ended
        raise PreconditionError(
            f"the sweep in {self._folder.path} already has a head: {self._who()}",
            hint="`windlass sweep show` follows it; to take over, stop that process first",
            code="in-use",
        )

    def _head(self) -> dict[str, Any]:
        try:
            found = read_json(self._folder.head_note)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _who(self) -> str:
        head = self._head()
        return f"process {head['pid']} on {head['host']}" if {"pid", "host"} <= set(head) else "another process"

    def _head_lives_here(self) -> bool:
        head = self._head()
        return head.get("host") == os.uname().nodename and Path(f"/proc/{head.get('pid')}").exists()

    def _close_in_forks(self) -> None:
        """Close the file in forked children, which would otherwise keep the lease after this process has ended."""
        me = weakref.ref(self)

        def close_in_child() -> None:
            journal = me()
            if journal is not None and journal._file >= 0:
                os.close(journal._file)
                journal._file = -1

        os.register_at_fork(after_in_child=close_in_child)

    def read(self) -> Iterator[list[Record]]:
        """Yield the existing records in pieces.

        Exhaust it once, before the first `append`.

        Raises:
            PreconditionError: records are missing in the middle (`sweep-journal-damaged`); nothing was changed.
        """
        stream = JournalStream(self._folder)
        for piece in stream.pieces():
            if piece[-1].seq != self.seq + len(piece):
                raise self._damaged(piece)
            self.seq = piece[-1].seq
            self.last_at = piece[-1].at
            yield piece
        self.end = stream.position

    def _damaged(self, piece: list[Record]) -> PreconditionError:
        place = next(place for place, record in enumerate(piece) if record.seq != self.seq + place + 1)
        last, next_one = self.seq + place, piece[place].seq
        return PreconditionError(
            f"{self._path} is damaged: record {last} is followed by record {next_one}, but records must have no gaps",
            hint=f"restore the file from a backup, or keep the records before it: head -n {last} head.wj > whole; mv whole head.wj",
            code="sweep-journal-damaged",
        )

    def begin(self) -> None:
        """Truncate an incomplete last record, and write the head's host and process to `head.json`."""
        if os.fstat(self._file).st_size > self.end:
            os.ftruncate(self._file, self.end)
        fsync_directory(self._folder.journal)
        fsync_directory(self._folder.path)
        self._zero = (max(self._clock.now(), self.last_at), self._clock.monotonic())
        self.tell()

    def tell(self, **facts: Any) -> None:
        """Add facts about the head to `head.json`, beside its host and process."""
        self._note.update(facts)
        with contextlib.suppress(OSError):  # the disk is full; this file is only informative
            write_json(self._folder.head_note, self._note, is_durable=False)

    def now(self) -> float:
        """Return the time for records: the wall time in whole microseconds, which never decreases within a sweep."""
        wall, monotonic = self._zero
        return round(wall + (self._clock.monotonic() - monotonic), 6)

    def append(self, kind: str, data: dict[str, Any], at: float) -> None:
        """Collect a record, which the next `write` writes.

        Raises:
            UsageError: it has a value that JSON cannot represent (`not-serialisable`).
        """
        self.seq += 1
        fields = {"kind": kind, "writer": HEAD, "seq": self.seq, "at": at, **data}
        try:
            body = _to_json(fields).encode("ascii")
        except (TypeError, ValueError) as error:
            self.seq -= 1
            raise BadValueError(
                f"a trial's configuration or report has a value that JSON cannot represent: {_unfit(data, '') or error}",
                hint="use numbers, text, lists and dictionaries; pass objects with `tune.with_parameters`",
                code="not-serialisable",
            ) from error
        self._lines.append(frame(body))

    def write(self) -> None:
        """Write the collected records to the file, so that they survive the end of this process.

        Raises:
            PreconditionError: the disk is full or the write failed (`not-writable`); nothing was written.
        """
        if not self._lines:
            return
        content = b"".join(self._lines)
        try:
            self._write(content)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.end)
            raise PreconditionError(
                f"cannot write {self._path}: {os.strerror(error.errno or 0)}",
                hint="free some space and run the same command again: the sweep resumes where it stopped",
                code="not-writable",
            ) from error
        self.end += len(content)
        self._lines.clear()
        self._is_dirty = True

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            num_written = os.pwrite(self._file, view, self.end + len(content) - len(view))
            if num_written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view = view[num_written:]

    def sync(self, *, is_urgent: bool = False) -> float:
        """Sync to disk if that is due or urgent; return the seconds until the next sync, or -1 if none is needed.

        Raises:
            PreconditionError: see `write`.
        """
        if not self._is_dirty:
            return -1.0
        left = self._synced_at + _SYNC_EVERY_S - self._clock.monotonic()
        if left > 0 and not is_urgent:
            return left
        try:
            os.fdatasync(self._file)
        except OSError as error:
            hint = "check the disk, then run the same command again"
            raise PreconditionError(f"{self._path}: {error}", hint=hint, code="not-writable") from error
        self._synced_at = self._clock.monotonic()
        self._is_dirty = False
        return -1.0

    def close(self) -> None:
        """Sync to disk and release the lease. Idempotent."""
        if self._file < 0:
            return
        with contextlib.suppress(PreconditionError):
            self.sync(is_urgent=True)
        os.close(self._file)
        self._file = -1


def _unfit(value: Any, place: str) -> str:
    """Describe the first value that JSON cannot represent, with its path; return an empty string if there is none."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for name, inner in pairs:
        found = _unfit(inner, f"{place}/{name}" if place else str(name))
        if found:
            return found
    is_plain = value is None or isinstance(value, (str, int, float, dict, list, tuple))
    return "" if is_plain else f"`{place}` is {value!r:.100}, a {type(value).__qualname__}"
