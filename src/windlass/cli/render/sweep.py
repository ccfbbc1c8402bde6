"""Sweeps and trials as text, and as data for `--json`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from windlass.cli.screen import paint, printable, table
from windlass.core.json_text import read_json
from windlass.core.phrases import ago, number

if TYPE_CHECKING:
    from windlass.tune.controller.journal.history import TrialHistory
    from windlass.tune.sweep.finding import SweepRow
    from windlass.tune.sweep.handle import SweepHandle

__all__ = [
    "best_lines",
    "headless_lines",
    "row_data",
    "show_lines",
    "sweep_data",
    "sweep_lines",
    "trial_data",
]

_COLOURS = {"running": "green", "interrupted": "yellow", "over": "dim", "damaged": "red", "": "dim"}


_HEADLESS = {"interrupted": "its head is not running", "": "its head has not started"}


def row_data(row: SweepRow) -> dict[str, object]:
    """Return one row of `sweep ls` as data."""
    return {
        "name": row.name,
        "folder": str(row.folder),
        "state": row.state or "new",
        "trials": row.counts,
        "metric": row.metric,
        "best": row.best,
        "best_trial": row.best_trial,
        "created_at": row.created_at,
        "why": row.why,
    }


def sweep_lines(rows: Sequence[SweepRow]) -> list[str]:
    """Return the table of `sweep ls`."""
    now = time.time()
    cells = [
        (
            row.name,
            row.state or "new",
            _counts(row.counts),
            "" if row.best is None else f"{row.metric} {number(row.best)} (trial {row.best_trial})",
            ago(row.created_at, now),
        )
        for row in rows
    ]
    return table(("sweep", "state", "trials", "best", "began"), cells)


def _counts(counts: dict[str, int]) -> str:
    words = {"TERMINATED": "done", "ERROR": "failed"}
    return ", ".join(f"{count} {words.get(status, status.lower())}" for status, count in counts.items()) or "none"


def show_lines(handle: SweepHandle) -> Iterator[str]:
    """Yield the page of one sweep: state, table of trials, waiting trials, and the next command."""
    row = handle.row
    yield f"{row.name}  {paint(row.state or 'new', _COLOURS[row.state])}" + (f": {row.why}" if row.why else "")
    yield f"  {_counts(row.counts)}  {row.folder}"
    if row.counts:
        yield from _trials(handle)
    yield from _head_reports(handle)
    if row.state in _HEADLESS:
        yield f"  windlass sweep resume {row.name}   # {_HEADLESS[row.state]}"
    elif row.state == "running":
        yield f"  windlass sweep show {row.name} --follow | windlass sweep stop {row.name}"
    else:
        yield f"  windlass sweep best {row.name} | windlass sweep extend {row.name} --samples N"


def headless_lines(handle: SweepHandle) -> Iterator[str]:
    """Yield why an unfinished sweep has no head, and the command that resumes it; nothing if the sweep is over."""
    row = handle.row
    if row.state in _HEADLESS:
        yield f"{row.name}  {row.state or 'new'}"
        yield from _head_reports(handle)
        yield f"  windlass sweep resume {row.name}   # {_HEADLESS[row.state]}"


def _head_reports(handle: SweepHandle) -> Iterator[str]:
    """Yield what the newest head reported outside the journal: failures, and the reason why it ended."""
    from windlass.tune.folder import SweepFolder  # lazy: only for this page

    try:
        report = read_json(SweepFolder(handle.folder).head_note)
    except (OSError, ValueError):  # no head yet, or being written on another machine
        return
    if not isinstance(report, dict):
        return
    for path in report.get("undeleted", ()):
        yield printable(f"  could not delete checkpoint: {path}")
    for name, what in (("refused", "a request was rejected"), ("error", "its head ended with an error")):
        if report.get(name):
            yield printable(f"  {what}: {report[name]}")


def _trials(handle: SweepHandle) -> Iterator[str]:
    import io  # lazy: only for this page

    from windlass.tune.views.watching import watch

    text = io.StringIO()
    watch(handle.folder, follows=False, stream=text)
    yield from (f"  {line}" for line in text.getvalue().rstrip("\n").split("\n"))


def sweep_data(handle: SweepHandle) -> dict[str, object]:
    """Return the data about one sweep and its trials."""
    row = handle.row
    trials = handle.history.trials.values() if row.counts or row.state else ()
    return {**row_data(row), "trials": [trial_data(handle, trial) for trial in trials], "counts": row.counts}


def trial_data(handle: SweepHandle, trial: TrialHistory) -> dict[str, Any]:
    """Return the data about one trial."""
    attempts = [
        {"attempt": each.number, "how": each.how, "host": each.host, "run": handle.run_of(trial.id, each.number)}
        for each in trial.attempts
    ]
    return {
        "trial": trial.id,
        "status": str(trial.status),
        "config": trial.config,
        "iteration": trial.iteration,
        "last": trial.last,
        "checkpoint": trial.checkpoint.path if trial.checkpoint else None,
        "attempts": attempts,
        "why": trial.why,
        "error": trial.error,
    }


def best_lines(handle: SweepHandle, best: TrialHistory, metric: str) -> Iterator[str]:
    """Yield the lines about the best trial, with the command that runs it again."""
    from windlass.tune.executors.runs.trial_template import (  # lazy: only for this page
        overrides_of,
        read_trial_template,
    )
    from windlass.tune.sweep.record import RECORD, read_record

    metrics = handle.history.objectives.metrics
    name = metric or (metrics[0] if metrics else "")
    value = (best.last or {}).get(name)
    shown = number(value) if isinstance(value, int | float) else value
    yield f"trial {best.id}  {name} {shown}  at iteration {best.iteration}"
    for key, each in (best.assigned or best.config).items():
        yield printable(f"  {key}: {each}")
    if best.checkpoint is not None:
        yield f"  checkpoint  {best.checkpoint.path}"
    if not (handle.folder / RECORD).exists():
        return
    record = read_record(handle.folder)
    run = handle.run_of(best.id, best.attempts[-1].number if best.attempts else 0)
    if run:
        yield f"  windlass show {run}"
        given = (one for one in read_trial_template(handle.folder).plan.overrides if not one.startswith("sweep."))
        words = shlex.join(["windlass", "launch", record.file, *given, *overrides_of(best.config)])
        yield printable(f"  {words}")
