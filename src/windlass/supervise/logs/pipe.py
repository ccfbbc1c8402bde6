"""What of a log survives its supervisor: the pipe, and a small file in memory.

The guard makes a `LogPipe` and outlives every supervisor; each incarnation of the supervisor inherits its descriptors.

    user's processes --write--> pipe --splice--> staging file in memory --LogPump--> log file + index

Layout of the staging file: one page with the cursor, then the raw bytes taken from the pipe and not yet let go.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import replace

from windlass.core.dataclass import dataclass
from windlass.supervise.linux import create_memory_file, enlarge_pipe

__all__ = ["HEADER_BYTES", "Cursor", "LogPipe"]

HEADER_BYTES = 4096
_PIPE_BYTES = 1 << 20
_CURSOR = struct.Struct("<8s16sQqQQQ")
_MAGIC = b"windlas1"


@dataclass(frozen=True)
class Cursor:
    """How far the log has come; written with one `pwrite` inside one page, so it is whole after any SIGKILL.

    Attributes:
        log: which log file the lengths speak of (a mark made of its path).
        consumed: staged bytes that are in the log.
        cut: -1, or the length to which the staged bytes are being cut right now.
        log_length: bytes of the log file.
        index_length: bytes of its index.
        num_lines: line ends in the log file.
    """

    log: bytes
    consumed: int = 0
    cut: int = -1
    log_length: int = 0
    index_length: int = 0
    num_lines: int = 0


@dataclass(frozen=True)
class LogPipe:
    """The descriptors of one log stream.

    Attributes:
        read_fd: end of the pipe from which the pump takes.
        staging_fd: the file in memory.
        write_fd: the user's stdout and stderr; -1 where this process does not hold it. Output ends (EOF) only
            when every process has closed its own, the guard included.
    """

    read_fd: int
    staging_fd: int
    write_fd: int = -1

    @classmethod
    def create(cls) -> LogPipe:
        """A fresh channel; like all descriptors in Python, closed on exec unless passed on (`pass_fds`)."""
        read_fd, write_fd = os.pipe()
        enlarge_pipe(read_fd, _PIPE_BYTES)
        return cls(read_fd, create_memory_file("windlass-log"), write_fd)

    @classmethod
    def parse(cls, text: str) -> LogPipe:
        """Read back what `str` wrote, in the process that inherited the descriptors."""
        read_fd, staging_fd, write_fd = (int(part) for part in text.split(","))
        return cls(read_fd, staging_fd, write_fd)

    def __str__(self) -> str:
        return ",".join(str(part) for part in (self.read_fd, self.staging_fd, self.write_fd))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What to pass to a child that is to pump, for `pass_fds`."""
        return tuple(part for part in (self.read_fd, self.staging_fd, self.write_fd) if part >= 0)

    def close_writer(self) -> LogPipe:
        """Close this process's write end, once the user's processes have theirs."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
        return replace(self, write_fd=-1)

    def close(self) -> None:
        """Close all descriptors of this process."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def load_cursor(self) -> Cursor | None:
        """The last cursor written by any incarnation; None on a fresh channel."""
        raw = os.pread(self.staging_fd, _CURSOR.size, 0)
        if len(raw) < _CURSOR.size:
            return None
        magic, log, consumed, cut, log_length, index_length, num_lines = _CURSOR.unpack(raw)
        if magic != _MAGIC:
            return None
        return Cursor(log, consumed, cut, log_length, index_length, num_lines)

    def save_cursor(self, cursor: Cursor) -> None:
        """Make `cursor` what the next incarnation finds."""
        raw = _CURSOR.pack(
            _MAGIC,
            cursor.log,
            cursor.consumed,
            cursor.cut,
            cursor.log_length,
            cursor.index_length,
            cursor.num_lines,
        )
        os.pwrite(self.staging_fd, raw, 0)

    def staged_length(self) -> int:
        """Bytes taken from the pipe since the staging file was last cut; exact after any SIGKILL."""
        return max(0, os.fstat(self.staging_fd).st_size - HEADER_BYTES)

    def read_staged(self, start: int, count: int) -> bytes:
        """Staged bytes; they stay where they are."""
        return os.pread(self.staging_fd, count, HEADER_BYTES + start)

    def write_staged(self, content: bytes) -> None:
        """Put `content` over the first staged bytes (which must be consumed already)."""
        os.pwrite(self.staging_fd, content, HEADER_BYTES)

    def cut_staged(self, length: int) -> None:
        """Let go of all staged bytes behind the first `length`."""
        os.ftruncate(self.staging_fd, HEADER_BYTES + length)
