"""Logs of a run: listing, reading and following them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError
from windlass.runs.store import RunFolder
from windlass.supervise.logs.index import index_path, offset_at

__all__ = ["LogFile", "LogFollower", "LogLine", "list_logs", "read"]

_LOG = re.compile(r"(\d+)\.log\Z")
_PIECE_BYTES = 1 << 20
_BAR_EVERY_S = 1.0
"""Minimum seconds between states of a progress bar (a line with carriage returns)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LogFile:
    """Log of one replica in one attempt."""

    attempt: int
    task: str
    rank: int
    path: Path

    @property
    def label(self) -> str:
        """Return the prefix for the log's lines, such as `train.0`."""
        return f"{self.task}.{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """Line of a log, without the line end."""

    task: str
    rank: int
    attempt: int
    text: str


def list_logs(
    run: RunFolder, *, task: str | None = None, rank: int | None = None, attempt: int | None = None
) -> list[LogFile]:
    """Return the existing logs, sorted by attempt, task and rank."""
    found = []
    for path in run.logs.glob("*/*/*.log"):
        match, number = _LOG.match(path.name), path.parent.parent.name
        if match and number.isdigit():
            log = LogFile(attempt=int(number), task=path.parent.name, rank=int(match[1]), path=path)
            if task in (None, log.task) and rank in (None, log.rank) and attempt in (None, log.attempt):
                found.append(log)
    return sorted(found)


def read(
    run: RunFolder, *, task: str, rank: int = 0, attempt: int | None = None, since: float = 0.0
) -> Iterator[bytes]:
    """Yield a replica's log in pieces, as it was printed.

    Args:
        attempt: by default, the newest one with a log of this replica.
        since: wall time; earlier lines are skipped, with a precision of 0.1 s.

    Raises:
        NotFoundError: there is no such log; the hint lists existing logs.
    """
    logs = list_logs(run, task=task, rank=rank, attempt=attempt)
    if not logs:
        raise _no_log(run, task, rank, attempt)
    return _pieces(logs[-1].path, _start(logs[-1].path, since))


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        file.seek(offset)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _start(path: Path, since: float) -> int:
    """Return the offset of the first line printed at or after a time, using the log's index."""
    if not since or not index_path(path).exists():
        return 0
    offset = offset_at(index_path(path), since)
    with open(path, "rb") as file:
        file.seek(max(0, offset - 1))
        if offset and file.read(1) != b"\n":
            file.readline()
            return file.tell()
    return offset


def _no_log(run: RunFolder, task: str, rank: int, attempt: int | None) -> NotFoundError:
    logs = list_logs(run)
    which = f"task {task!r}, replica {rank}" + ("" if attempt is None else f", attempt {attempt}")
    message = f"run {run.id} has no log of {which}"
    if not logs:
        return NotFoundError(message, hint="no task has started yet", code="not-found")
    labels = ", ".join(f"{log.label} of attempt {log.attempt}" for log in logs[:8])
    return NotFoundError(
        message, hint=f"existing logs: {labels}" + (", ..." if len(logs) > 8 else ""), code="not-found"
    )


class LogFollower:
    """Reader of new, complete lines in a run's logs, including those of new attempts and replicas.

    A progress bar (a line with carriage returns) yields its newest state once a second while it changes. A poll without
    new lines costs one stat per file.

    Args:
        task, rank, attempt: restrict the logs, as in `list_logs`.
        since: wall time; older lines in logs that exist at the first poll are skipped.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        task: str | None = None,
        rank: int | None = None,
        attempt: int | None = None,
        since: float = 0.0,
    ) -> None:
        self._run = run
        self._task, self._rank, self._attempt = task, rank, attempt
        self._since = since
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}
        self._bars: dict[Path, tuple[float, bytes]] = {}

    def poll(self) -> Iterator[LogLine]:
        """Yield the lines completed since the last call."""
        for log in list_logs(self._run, task=self._task, rank=self._rank, attempt=self._attempt):
            if log.path not in self._offsets:
                self._offsets[log.path] = _start(log.path, self._since)
            yield from self._read_on(log)

    def finish(self, task: str, attempt: int) -> list[LogLine]:
        """Return the last, unterminated lines in the logs of an attempt that has ended."""
        logs = list_logs(self._run, task=task, rank=self._rank, attempt=attempt)
        return [_line(log, text) for log in logs if (text := self._take_partial(log))]

    def rest(self) -> Iterator[LogLine]:
        """Yield all remaining lines, including unterminated ones."""
        yield from self.poll()
        for log in list_logs(self._run, task=self._task, rank=self._rank, attempt=self._attempt):
            text = self._take_partial(log)
            if text:
                yield _line(log, text)

    def _take_partial(self, log: LogFile) -> bytes:
        text = self._partial.pop(log.path, b"")
        return b"" if self._was_shown(log, text) else text

    def _read_on(self, log: LogFile) -> Iterator[LogLine]:
        if os.stat(log.path).st_size <= self._offsets[log.path]:
            return
        for piece in _pieces(log.path, self._offsets[log.path]):
            self._offsets[log.path] += len(piece)
            *lines, partial = (self._partial.pop(log.path, b"") + piece).split(b"\n")
            self._partial[log.path] = partial
            for text in lines:
                if not self._was_shown(log, text):
                    yield _line(log, text)
        yield from self._bar(log)

    def _bar(self, log: LogFile) -> Iterator[LogLine]:
        """Yield the newest state of a progress bar, and drop earlier states."""
        partial = self._partial.get(log.path, b"")
        if b"\r" not in partial:
            return
        self._partial[log.path] = b"\r" + _last_state(partial) + (b"\r" if partial.endswith(b"\r") else b"")
        now, state = time.monotonic(), _last_state(partial)
        shown_at, shown = self._bars.get(log.path, (float("-inf"), b""))
        if state.strip() and state != shown and now >= shown_at + _BAR_EVERY_S:
            self._bars[log.path] = (now, state)
            yield _line(log, state)

    def _was_shown(self, log: LogFile, text: bytes) -> bool:
        """Return whether a completed line was already shown as a progress bar."""
        _, shown = self._bars.pop(log.path, (0.0, b""))
        return b"\r" in text and bool(shown) and _last_state(text) == shown


def _line(log: LogFile, text: bytes) -> LogLine:
    text = _last_state(text)
    return LogLine(task=log.task, rank=log.rank, attempt=log.attempt, text=text.decode(errors="replace"))


def _last_state(text: bytes) -> bytes:
    """Return the visible part of a line: the text after the last carriage return."""
    return text.rstrip(b"\r").rpartition(b"\r")[2]
