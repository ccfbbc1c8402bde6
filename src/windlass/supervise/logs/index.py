"""Index of a log, in a file beside it: offsets, lines and times, so that `logs --since` can seek.

One fixed-size record per piece appended to the log, at most ten per second: the byte at `offset`, on line `line`
(counted from 0), arrived at `time_ns`; bytes up to the next record arrived within `INTERVAL_NS` of it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from windlass.core.dataclass import dataclass

__all__ = ["INTERVAL_NS", "RECORD_BYTES", "IndexRecord", "index_path", "offset_at", "read_index"]

INTERVAL_NS = 100_000_000
_RECORD = struct.Struct("<QQQ")
RECORD_BYTES = _RECORD.size


@dataclass(frozen=True)
class IndexRecord:
    """Entry of an index: where a piece of the log starts, and when it arrived.

    Attributes:
        offset: position in the log file.
        line: number of line ends before it.
        time_ns: wall time of arrival, nanoseconds since 1970 UTC; may jump back.
    """

    offset: int
    line: int
    time_ns: int

    def pack(self) -> bytes:
        """Encode as `RECORD_BYTES` bytes."""
        return _RECORD.pack(self.offset, self.line, self.time_ns)


def index_path(log_path: Path) -> Path:
    """Return the path of a log's index: `0.log` -> `0.log.idx`."""
    return log_path.with_name(log_path.name + ".idx")


def read_index(path: Path) -> list[IndexRecord]:
    """Read all complete records; return an empty list if there is no index yet."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = len(raw) - len(raw) % RECORD_BYTES
    return [IndexRecord(*fields) for fields in _RECORD.iter_unpack(raw[:whole])]


def offset_at(path: Path, wall_time: float) -> int:
    """Return an offset in the log; everything after it arrived at `wall_time` or later.

    Args:
        path: the index (`<log>.idx`), beside the log.
        wall_time: seconds since 1970 UTC.

    Returns:
        The beginning of the first piece that arrived then or later (up to 0.1 s early); the length of the log if there
        is none.
    """
    time_ns = int(wall_time * 1e9)
    for record in read_index(path):
        if record.time_ns + INTERVAL_NS > time_ns:
            return record.offset
    try:
        return os.stat(str(path.with_suffix(""))).st_size
    except FileNotFoundError:
        return 0
