"""Metrics reported by user code, read from the journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from windlass.core.dataclass import dataclass
from windlass.record import events
from windlass.record.frames import decode
from windlass.record.journal import SUFFIX
from windlass.record.shapes import is_well_formed
from windlass.runs.store import RunFolder

__all__ = ["MetricPoint", "last", "names", "series"]

_MARK = f'{{"kind":"{events.METRICS}",'.encode("ascii")
_HEADER_BYTES = 18


class MetricPoint(NamedTuple):
    """Reported value of a metric.

    Attributes:
        step: the reported step; -1 if none was reported.
        time: wall time of the report, in seconds since the epoch.
    """

    step: int
    value: float
    time: float


@dataclass(frozen=True, slots=True)
class _Report:
    """Content of a `metrics` record."""

    task: str
    attempt: int
    rank: int
    writer: str
    seq: int
    step: int
    at: float
    values: dict[str, float]
    is_evaluation: bool = False


def names(run: RunFolder, task: str | None = None) -> list[str]:
    """Return the names of all reported metrics, sorted."""
    return sorted({name for report in _reports(run, task) for name in report.values})


def series(run: RunFolder, name: str, task: str | None = None) -> list[MetricPoint]:
    """Return the values of a metric by step; those of later attempts take precedence.

    If several processes report a step, the value of the lowest rank is used. All values without a step are kept, in
    chronological order.
    """
    by_task: dict[str, list[_Report]] = {}
    for report in _reports(run, task, name):
        by_task.setdefault(report.task, []).append(report)
    points = [point for reports in by_task.values() for point in _history(reports, name)]
    return sorted(points, key=lambda point: (point.step, point.time))


def last(run: RunFolder, task: str | None = None) -> dict[str, MetricPoint]:
    """Return the newest point of every metric."""
    newest: dict[str, tuple[tuple[int, float, int], MetricPoint]] = {}
    for report in _reports(run, task):
        order = (report.attempt, report.at, -report.rank)
        for name, value in report.values.items():
            if name not in newest or order >= newest[name][0]:
                newest[name] = (order, MetricPoint(report.step, value, report.at))
    return {name: newest[name][1] for name in sorted(newest)}


def _history(reports: list[_Report], name: str) -> Iterator[MetricPoint]:
    """Yield a task's points, except those that a later attempt repeated."""
    resumed_at = _resumed_at(reports)
    chosen: dict[int, tuple[tuple[int, int, str], _Report]] = {}
    for report in sorted(reports, key=lambda report: (report.writer, report.seq)):
        if report.step < 0:
            yield MetricPoint(report.step, report.values[name], report.at)
            continue
        if report.step >= resumed_at[report.attempt]:
            continue
        order = (-report.attempt, report.rank, report.writer)
        if report.step not in chosen or order <= chosen[report.step][0]:
            chosen[report.step] = (order, report)
    for step, (_, report) in chosen.items():
        yield MetricPoint(step, report.values[name], report.at)


def _resumed_at(reports: list[_Report]) -> dict[int, float]:
    """Return the first step that a later attempt reported, by attempt."""
    first: dict[int, int] = {}
    for report in reports:
        if report.step >= 0 and not report.is_evaluation:  # an evaluation does not continue the one before
            first[report.attempt] = min(first.get(report.attempt, report.step), report.step)
    resumed, lowest = {}, float("inf")
    for attempt in sorted({report.attempt for report in reports}, reverse=True):
        resumed[attempt] = lowest
        lowest = min(lowest, first.get(attempt, float("inf")))
    return resumed


def _reports(run: RunFolder, task: str | None, name: str | None = None) -> Iterator[_Report]:
    needle = b"" if name is None else _json_key(name)
    if not run.journal.is_dir():
        return
    for path in sorted(run.journal.glob(f"*{SUFFIX}")):
        with open(path, "rb") as lines:
            for line in lines:
                if line.startswith(_MARK, _HEADER_BYTES) and needle in line:
                    report = _read(line)
                    if report and task in (None, report.task) and (name is None or name in report.values):
                        yield report


def _json_key(name: str) -> bytes:
    import json  # lazy: only needed to escape a name like the journal does

    return json.dumps(name).encode("ascii") + b":"


def _read(line: bytes) -> _Report | None:
    record = decode(line)
    if record is None or not is_well_formed(record):
        return None
    data = record.data
    values = {name: float(value) for name, value in data["values"].items()}
    return _Report(
        data["task"],
        data["attempt"],
        data["rank"],
        record.writer,
        record.seq,
        data["step"],
        record.at,
        values,
        data.get("evaluates") is True,
    )
