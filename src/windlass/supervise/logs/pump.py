"""Pump from the user's output to the log file; no byte is lost or duplicated if the pump is killed.

Protocol. Let S be the staged bytes in memory, held by the guard (see `LogPipe`), and c the cursor there.

  1. splice pipe -> end of S. The kernel moves bytes; at any time each byte is in the pipe or in S.
  2. read S from c.consumed on, and redact. The redactor may leave the end, which may be the beginning of a secret.
  3. write the redacted bytes to the log *at* c.log_length, and a record to the index *at* c.index_length.
  4. save the new cursor, with one pwrite: this is the commit.
  5. when S has reached half its capacity: copy the few bytes after c.consumed to the front of S (over consumed
     bytes), save a cursor with consumed = 0 and cut = n, truncate S to n bytes, save cut = -1.

SIGKILL may occur between any two instructions. After step 1, S is longer, and the next incarnation continues with it.
After step 2 or during step 3, the log is longer than in the cursor: recovery truncates log and index and repeats the
step. Bytes 0 to c.log_length never change, and the repeated bytes are identical, so a reader that keeps its offset sees
each byte once. In step 5 before the cursor is saved, the front of S is unused garbage. After it is saved, recovery
repeats the truncation, and nothing else modifies S before that. Only the one live pump appends to S: the guard starts the
next one after it has reaped the last.

Not covered: power failures and kernel crashes (nothing is synced), and two concurrent pumps. Without splice (not Linux),
step 1 is a read and a write: a SIGKILL between the two loses what was read, at most the capacity of the pipe.

Capacity. S never exceeds `capacity`; the redactor holds back at most a quarter of it, so step 5 is always possible and a
full S never blocks. Only a full disk blocks (`is_blocked`): then S fills, the pipe fills, and the user's process waits
in its write until space is free again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import termios
import zlib
from dataclasses import replace
from pathlib import Path

from windlass.core.clock import Clock
from windlass.core.dataclass import dataclass
from windlass.record.redact import Redactor
from windlass.supervise.linux import splice_to_file
from windlass.supervise.logs.index import INTERVAL_NS, RECORD_BYTES, IndexRecord, index_path
from windlass.supervise.logs.pipe import HEADER_BYTES, Cursor, LogPipe

__all__ = ["LogPump", "PumpResult"]

_MIN_CAPACITY = 4 << 20
_TAIL_BYTES = 64 << 10
_POLL_S = 0.2
_DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@dataclass(frozen=True)
class PumpResult:
    """Result of one call of the pump.

    Attributes:
        num_bytes: bytes taken from the user's processes.
        is_eof: whether all writers are gone and everything is in the log.
        is_blocked: whether the disk is full (cause `disk-full`); nothing is lost. Call again on a timer, not when the
            pipe is readable.
        data: the redacted bytes that were appended to the log.
    """

    num_bytes: int
    is_eof: bool
    is_blocked: bool
    data: bytes


class LogPump:
    """Pump for one log: reads from a pipe, and appends to the log file and its index.

    Creating it recovers the state: it continues where the last incarnation was killed. A log file unknown to the pipe
    (from an incarnation whose guard died too) is continued. A pipe may serve several logs in turn: drain in between.

    Args:
        pipe: pipe held by the guard; not closed here.
        log_path: the log file; the index is `<log_path>.idx`.
        redactor: redactor of the secrets that must not be in the log.
        clock: wall time for the index, monotonic time for `drain`.
    """

    def __init__(self, pipe: LogPipe, log_path: Path, redactor: Redactor, clock: Clock) -> None:
        self._pipe = pipe
        self._redactor = redactor
        self._clock = clock
        self._capacity = max(_MIN_CAPACITY, 4 * redactor.max_held_bytes)
        self._has_splice = True
        self._is_eof = False
        self._last_index_ns = 0
        os.set_blocking(pipe.read_fd, False)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._log_fd = os.open(str(log_path), flags, 0o644)
        self._index_fd = os.open(str(index_path(log_path)), flags, 0o644)
        self._cursor = self._recover(_mark(os.fsencode(os.path.abspath(str(log_path)))))

    def pump(self) -> PumpResult:
        """Move the content of the pipe to the log; never waits for output."""
        num_bytes = 0
        try:
            num_bytes = self._receive()
            data = self._advance(is_final=self._is_eof)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            self._cut_files(self._cursor)
            return PumpResult(num_bytes, False, True, b"")
        return PumpResult(num_bytes, self._is_eof, False, data)

    def drain(self, deadline: float) -> PumpResult:
        """Pump until the output ends, or everything printed before `deadline` is in the log, held-back bytes included.

        Args:
            deadline: monotonic time; in the past: pump only the current content of the pipe.

        Returns:
            The combined result of all turns; `data` has the last 64 KiB. If `is_blocked`, the rest stays staged.
        """
        total, data = 0, b""
        leftover = -1
        while True:
            result = self.pump()
            total += result.num_bytes
            data = (data + result.data)[-_TAIL_BYTES:]
            remaining_s = deadline - self._clock.monotonic()
            if result.is_eof:
                return PumpResult(total, True, False, data)
            if remaining_s > 0:
                self._wait(min(remaining_s, _POLL_S), result)
                continue
            if result.is_blocked:
                return PumpResult(total, False, True, data)
            leftover = self._num_waiting() if leftover < 0 else leftover - result.num_bytes
            if leftover <= 0 or not result.num_bytes:
                break
        try:
            data = (data + self._advance(is_final=True))[-_TAIL_BYTES:]
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            self._cut_files(self._cursor)
            return PumpResult(total, False, True, data)
        return PumpResult(total, False, False, data)

    def last_lines(self, count: int) -> list[str]:
        """Return the last `count` redacted lines in the last 64 KiB of the log; works after a restart too."""
        start = max(0, self._cursor.log_length - _TAIL_BYTES)
        raw = os.pread(self._log_fd, self._cursor.log_length - start, start)
        lines = raw.decode(errors="replace").splitlines()
        return lines[-count:] if count > 0 else []

    def close(self) -> None:
        """Sync and close the files; the pipe stays open."""
        for descriptor in (self._log_fd, self._index_fd):
            os.fsync(descriptor)
            os.close(descriptor)

    # --- step 1

    def _receive(self) -> int:
        """Move bytes from the pipe to the staging file; record the end of the output."""
        staged = self._pipe.staged_length()
        room = self._capacity - staged
        if self._is_eof or room <= 0:
            return 0
        try:
            moved = self._move(room, HEADER_BYTES + staged)
        except BlockingIOError:
            return 0
        self._is_eof = moved == 0
        return moved

    def _move(self, count: int, offset: int) -> int:
        if self._has_splice:
            try:
                return splice_to_file(self._pipe.read_fd, self._pipe.staging_fd, count, offset)
            except NotImplementedError:
                self._has_splice = False
        content = os.read(self._pipe.read_fd, count)
        _write_at(self._pipe.staging_fd, content, offset)
        return len(content)

    # --- steps 2 to 5

    def _advance(self, is_final: bool) -> bytes:
        """Append staged bytes to the log, except those that the redactor holds back; return the appended bytes."""
        cursor = self._cursor
        staged = self._pipe.read_staged(cursor.consumed, self._pipe.staged_length() - cursor.consumed)
        if not staged:
            return b""
        data, taken = self._redactor.feed(staged, is_final)
        if taken:
            self._commit(data, taken)
        if cursor.consumed + len(staged) >= self._capacity // 2:
            self._make_room(staged[taken:])
        return data

    def _commit(self, data: bytes, taken: int) -> None:
        cursor = self._cursor
        _write_at(self._log_fd, data, cursor.log_length)
        now_ns = int(self._clock.now() * 1e9)
        index_length = cursor.index_length
        if not self._last_index_ns <= now_ns < self._last_index_ns + INTERVAL_NS:
            record = IndexRecord(cursor.log_length, cursor.num_lines, now_ns)
            _write_at(self._index_fd, record.pack(), index_length)
            index_length += RECORD_BYTES
            self._last_index_ns = now_ns
        self._save(
            replace(
                cursor,
                consumed=cursor.consumed + taken,
                log_length=cursor.log_length + len(data),
                index_length=index_length,
                num_lines=cursor.num_lines + data.count(b"\n"),
            )
        )

    def _make_room(self, held: bytes) -> None:
        self._pipe.write_staged(held)
        self._save(replace(self._cursor, consumed=0, cut=len(held)))
        self._pipe.cut_staged(len(held))
        self._save(replace(self._cursor, cut=-1))

    def _save(self, cursor: Cursor) -> None:
        self._pipe.save_cursor(cursor)
        self._cursor = cursor

    # --- recovery

    def _recover(self, log: bytes) -> Cursor:
        """After a SIGKILL, restore the log files and the staged bytes to the last commit."""
        found = self._pipe.load_cursor()
        cursor = found or Cursor(log)
        if cursor.cut >= 0:
            self._pipe.cut_staged(cursor.cut)
            cursor = replace(cursor, cut=-1)
        log_length, index_length = (os.fstat(descriptor).st_size for descriptor in (self._log_fd, self._index_fd))
        if found is None or found.log != log:
            cursor = self._adopt(replace(cursor, log=log), log_length, index_length)
        else:
            cursor = replace(
                cursor,
                log_length=min(cursor.log_length, log_length),
                index_length=min(cursor.index_length, index_length),
            )
        self._cut_files(cursor)
        if found is None:
            self._pipe.cut_staged(0)
        self._pipe.save_cursor(cursor)
        return cursor

    def _adopt(self, cursor: Cursor, log_length: int, index_length: int) -> Cursor:
        """Continue a log file that this pipe has no cursor for, usually a new, empty one."""
        num_lines, offset = 0, 0
        while offset < log_length:
            piece = os.pread(self._log_fd, 1 << 20, offset)
            if not piece:
                break
            num_lines += piece.count(b"\n")
            offset += len(piece)
        whole = index_length - index_length % RECORD_BYTES
        return replace(cursor, log_length=offset, index_length=whole, num_lines=num_lines)

    def _cut_files(self, cursor: Cursor) -> None:
        """Undo writes after the last commit."""
        os.ftruncate(self._log_fd, cursor.log_length)
        os.ftruncate(self._index_fd, cursor.index_length)

    # --- waiting

    def _wait(self, timeout_s: float, result: PumpResult) -> None:
        if result.is_blocked:
            self._clock.sleep(timeout_s)
        elif not result.num_bytes:
            poll = select.poll()
            poll.register(self._pipe.read_fd, select.POLLIN)
            poll.poll(timeout_s * 1000)

    def _num_waiting(self) -> int:
        """Return the number of bytes in the pipe."""
        with contextlib.suppress(OSError):
            return int(struct.unpack("i", fcntl.ioctl(self._pipe.read_fd, termios.FIONREAD, b"\0" * 4))[0])
        return 0


def _mark(path: bytes) -> bytes:
    """Return 16 bytes that distinguish the logs of a replica's attempts: length and checksums of the path."""
    return struct.pack("<QII", len(path), zlib.crc32(path), zlib.adler32(path))


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
