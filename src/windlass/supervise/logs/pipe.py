"""Log state that outlives a supervisor: the pipe, and a small file in memory.

The guard creates a `LogPipe` and outlives all supervisors; each incarnation of the supervisor inherits its descriptors.

user's processes --write--> pipe --splice--> staging file in memory --LogPump--> log file + index

Layout of the staging file: one page with the cursor, then the raw bytes read from the pipe and not yet released.
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
    """Progress of a log; written with one `pwrite` within one page, so that no SIGKILL leaves it incomplete.

    Attributes:
        log: mark of the log file that the lengths refer to, derived from its path.
        consumed: staged bytes that are in the log.
        cut: -1, or the length to which the staged bytes are being truncated.
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
    """Descriptors of one log stream.

    Attributes:
        read_fd: end of the pipe that the pump reads.
        staging_fd: the file in memory.
        write_fd: the user's stdout and stderr; -1 if this process does not hold it. Output ends (EOF) only when all
            processes, the guard included, have closed it.
    """

    read_fd: int
    staging_fd: int
    write_fd: int = -1

    @classmethod
    def create(cls) -> LogPipe:
        """Create a pipe; like all of Python's descriptors, its ends are closed on exec unless listed in `pass_fds`."""
        read_fd, write_fd = os.pipe()
        enlarge_pipe(read_fd, _PIPE_BYTES)
        return cls(read_fd, create_memory_file("windlass-log"), write_fd)

    @classmethod
    def parse(cls, text: str) -> LogPipe:
        """Decode `str`, in the process that inherited the descriptors."""
        read_fd, staging_fd, write_fd = (int(part) for part in text.split(","))
        return cls(read_fd, staging_fd, write_fd)

    def __str__(self) -> str:
        return ",".join(str(part) for part in (self.read_fd, self.staging_fd, self.write_fd))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a child needs to run the pump, for `pass_fds`."""
        return tuple(part for part in (self.read_fd, self.staging_fd, self.write_fd) if part >= 0)

    def close_writer(self) -> LogPipe:
        """Close this process's write end once the user's processes have theirs."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
        return replace(self, write_fd=-1)

    def close(self) -> None:
        """Close all of this process's descriptors of the pipe."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def load_cursor(self) -> Cursor | None:
        """Return the newest cursor that any incarnation wrote; None for a new pipe."""
        raw = os.pread(self.staging_fd, _CURSOR.size, 0)
        if len(raw) < _CURSOR.size:
            return None
        magic, log, consumed, cut, log_length, index_length, num_lines = _CURSOR.unpack(raw)
        if magic != _MAGIC:
            return None
        return Cursor(log, consumed, cut, log_length, index_length, num_lines)

    def save_cursor(self, cursor: Cursor) -> None:
        """Store `cursor`, which the next incarnation reads too."""
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
        """Return the number of bytes read from the pipe since the last truncation; exact after any SIGKILL."""
        return max(0, os.fstat(self.staging_fd).st_size - HEADER_BYTES)

    def read_staged(self, start: int, count: int) -> bytes:
        """Return staged bytes without removing them."""
        return os.pread(self.staging_fd, count, HEADER_BYTES + start)

    def write_staged(self, content: bytes) -> None:
        """Overwrite the first staged bytes, which must already be in the log."""
        os.pwrite(self.staging_fd, content, HEADER_BYTES)

    def cut_staged(self, length: int) -> None:
        """Truncate the staged bytes to `length`."""
        os.ftruncate(self.staging_fd, HEADER_BYTES + length)
