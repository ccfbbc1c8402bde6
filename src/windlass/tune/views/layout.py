"""Layout of a sweep's view as lines and a table of text, for terminals, notebooks and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.core.phrases import count, duration
from windlass.tune.results.columns import AUTO_FILLED
from windlass.tune.results.why import format_value
from windlass.tune.trial import TrialStatus
from windlass.tune.views.progress import SweepProgress, TrialRow
from windlass.tune.views.reporters import ViewSettings

__all__ = ["Table", "best_line", "count_line", "failure_lines", "fit", "trial_table", "wait_lines"]

_DEFAULT_METRICS = {"training_iteration": "iter", "time_total_s": "time (s)"}
_ORDER = (TrialStatus.RUNNING, TrialStatus.PAUSED, TrialStatus.PENDING, TrialStatus.TERMINATED, TrialStatus.ERROR)
_WORDS = {
    TrialStatus.RUNNING: "running",
    TrialStatus.PAUSED: "paused",
    TrialStatus.PENDING: "waiting",
    TrialStatus.TERMINATED: "done",
    TrialStatus.ERROR: "failed",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Table with headings, rows of text, and the number of hidden trials; columns in `numeric` are right-aligned."""

    headings: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    num_hidden: int


def count_line(progress: SweepProgress, *, reports_per_s: float | None = None) -> str:
    """Return one line with the trials by status, the slots, the reports and their rate."""
    found = progress.num_trials
    trials = f"{found} of {count(progress.total, 'trial')}" if progress.total > found else count(found, "trial")
    counts = ", ".join(f"{progress.counts[status]} {_WORDS[status]}" for status in _ORDER if progress.counts[status])
    slots = f"; {count(progress.num_slots, 'slot')}" if progress.num_slots else ""
    rate = f" ({reports_per_s:.3g}/s)" if reports_per_s is not None else ""
    lost = f"; {count(progress.num_interruptions, 'interruption')}" if progress.num_interruptions else ""
    reports = count(progress.num_reports, "report")
    elapsed = duration(progress.newest_at - progress.began_at)
    return f"{trials}: {counts or 'none yet'}{slots}; {reports}{rate}{lost}; {elapsed}"


def best_line(progress: SweepProgress, settings: ViewSettings) -> str:
    """Return a line with the best value, its trial and its parameters; empty before the first value."""
    row = progress.best
    if row is None or row.best is None:
        return ""
    values = "  ".join(
        f"{name}={_cut(value, settings.max_width)}" for name, value in _parameters(row, settings).items()
    )
    return f"best {progress.metric} {format_value(row.best)} in trial {row.trial}: {values}"


def _parameters(row: TrialRow, settings: ViewSettings) -> Mapping[str, Any]:
    if settings.parameter_columns is None:
        return row.assigned
    return {heading: row.assigned.get(name, "") for name, heading in settings.parameter_columns.items()}


def wait_lines(progress: SweepProgress, *, num_lines: int = 3) -> list[str]:
    """Return why trials are waiting, most frequent reason first, and why the sweep is ending, if it is."""
    lines = [f"{count} wait: {why}" for why, count in progress.waiting.most_common(num_lines)]
    if progress.head_waits and not progress.counts[TrialStatus.RUNNING]:
        lines.append(f"nothing starts: {progress.head_waits}")
    if progress.limit:
        lines.append(f"ending: {progress.limit}")
    if progress.ended_why:
        lines.append(f"ended: {progress.ended_why}")
    return lines


def failure_lines(progress: SweepProgress, num_lines: int) -> list[str]:
    """Return the newest errors, newest first, one line each."""
    shown = list(progress.failures)[::-1][:num_lines]
    hidden = progress.num_failures - len(shown)
    lines = [f"trial {failure.trial} failed: {failure.line}" for failure in shown]
    return [*lines, *([f"and {hidden} earlier ones"] if hidden > 0 and shown else [])]


def trial_table(progress: SweepProgress, settings: ViewSettings) -> Table:
    """Return the table of trials: running ones first, then paused and waiting ones, then the best finished ones."""
    live = sorted(progress.live.values(), key=lambda row: _ORDER.index(row.status))
    if settings.sorts_by_metric:
        sign = -1 if progress.mode == "max" else 1
        live.sort(key=lambda row: (_ORDER.index(row.status), row.best is None, sign * (row.best or 0)))
    num_ended = min(progress.num_trials - len(live), max(settings.max_rows // 2, settings.max_rows - len(live)))
    ended = progress.top_finished(num_ended)
    rows = [*live[: settings.max_rows - len(ended)], *ended]
    metrics = _metric_columns(progress, settings)
    parameters = _parameter_columns(rows, settings)
    headings = ["trial", "status", "where", *parameters.values(), *metrics.values()]
    cells = [
        [
            row.trial,
            _WORDS[row.status],
            _cut(row.place, settings.max_width),
            *(_cut(row.assigned.get(name, ""), settings.max_width) for name in parameters),
            *(_cut(row.metrics.get(name, ""), settings.max_width) for name in metrics),
        ]
        for row in rows
    ]
    values = [
        [row.assigned.get(name) for name in parameters] + [row.metrics.get(name) for name in metrics] for row in rows
    ]
    numeric = [any(isinstance(one, int | float) for one in column) for column in zip(*values, strict=True)]
    is_right = [False] * 3 + (numeric or [False] * (len(headings) - 3))
    return Table(
        [_cut(name, settings.max_width) for name in headings], cells, is_right, progress.num_trials - len(rows)
    )


def fit(table: Table, width: int, *, keeps: str = "") -> Table:
    """Drop columns that do not fit the width, but never the trial, the status and `keeps`.

    Columns with equal values in all rows are dropped first, then the rightmost columns.
    """
    columns = list(zip(table.headings, *table.rows, strict=True))
    widths = [max(map(len, column)) + 2 for column in columns]
    droppable = [place for place, heading in enumerate(table.headings) if place > 1 and heading != keeps]
    droppable.sort(key=lambda place: (len(set(columns[place][1:])) > 1, -place))
    kept = set(range(len(columns)))
    for place in droppable:
        if sum(widths[one] for one in kept) <= width:
            break
        kept.discard(place)
    places = sorted(kept)
    rows = [[row[place] for place in places] for row in table.rows]
    numeric = [table.numeric[place] for place in places]
    return Table([table.headings[place] for place in places], rows, numeric, table.num_hidden)


def _metric_columns(progress: SweepProgress, settings: ViewSettings) -> dict[str, str]:
    if settings.metric_columns is not None:
        return dict(settings.metric_columns)
    own = [name for name in progress.user_metrics if name not in AUTO_FILLED and name != progress.metric]
    found = [progress.metric, *own[: settings.max_inferred]] if progress.metric else own[: settings.max_inferred]
    return {**_DEFAULT_METRICS, **{name: name for name in found}}


def _parameter_columns(rows: list[TrialRow], settings: ViewSettings) -> dict[str, str]:
    if settings.parameter_columns is not None:
        return dict(settings.parameter_columns)
    return {name: name for row in rows for name in row.assigned}


def _cut(value: object, width: int) -> str:
    """Shorten a string to a width, keeping its end, which usually says more."""
    text = format_value(value)
    return text if len(text) <= width else f"...{text[3 - width :]}"
