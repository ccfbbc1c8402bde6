"""Merging of several logs by time (to 0.1 s, the resolution of a log's index)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from windlass.runs.logs import LogFile
from windlass.supervise.logs.index import IndexRecord, index_path, read_index

__all__ = ["merged_lines"]


def merged_lines(logs: list[LogFile], since: float = 0.0) -> Iterator[tuple[LogFile, str]]:
    """Yield every line together with its log; the lines of one log keep their order.

    Args:
        since: wall time; only lines written then or later (up to 0.1 s early).
    """
    streams = [_timed(log, number, int(since * 1e9)) for number, log in enumerate(logs)]
    for _, number, _, text in heapq.merge(*streams):
        yield logs[number], text


def _timed(log: LogFile, number: int, since_ns: int) -> Iterator[tuple[int, int, int, str]]:
    """Yield (time, log number, line number, text) for each line.

    Times never decrease, even if the clock was set back.
    """
    marks = _Marks(read_index(index_path(log.path)))
    offset = latest = 0
    with open(log.path, "rb") as file:
        for count, line in enumerate(file):
            came = marks.time_at(offset)
            offset += len(line)
            latest = max(latest, came)
            if came >= since_ns - 100_000_000:
                shown = line.rstrip(b"\r\n").rpartition(b"\r")[2]  # the last state of a progress bar
                yield latest, number, count, shown.decode(errors="replace")


class _Marks:
    """Lookup of the time at which a byte offset was written; offsets must not decrease from call to call."""

    def __init__(self, records: list[IndexRecord]) -> None:
        self._records = records
        self._at = 0

    def time_at(self, offset: int) -> int:
        while self._at + 1 < len(self._records) and self._records[self._at + 1].offset <= offset:
            self._at += 1
        return self._records[self._at].time_ns if self._records else 0
