"""Sweeps and trials as lines for people and as JSON for programs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from windlass.cli.phrases import ago, number
from windlass.cli.screen import paint, printable, table

if TYPE_CHECKING:
    from windlass.tune.controller.history import TrialHistory
    from windlass.tune.sweep import SweepHandle, SweepRow

__all__ = ["best_lines", "complete_sweeps", "row_data", "show_lines", "sweep_data", "sweep_lines", "trial_data"]

_COLOURS = {"running": "green", "interrupted": "yellow", "over": "dim", "": "dim"}


def complete_sweeps(incomplete: str) -> list[str]:
    """Names of sweeps that begin so, and `last`; nothing where the home cannot be read."""
    from windlass.runs.home import Home  # lazy: only a shell that completes needs it
    from windlass.tune.sweep.finding import sweep_names

    try:
        names = sweep_names(Home.default())
    except Exception:  # noqa: BLE001 - a broken home is no reason to print a traceback into somebody's prompt
        return []
    return [name for name in [*names, "last"] if name.startswith(incomplete)]


def row_data(row: SweepRow) -> dict[str, object]:
    """One sweep of a list."""
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
    """The table of `sweep ls`."""
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
    """One sweep: its state, its trials as a table, what waits, and what to type next."""
    row = handle.row
    yield f"{row.name}  {paint(row.state or 'new', _COLOURS[row.state])}" + (f": {row.why}" if row.why else "")
    yield f"  {_counts(row.counts)}  {row.folder}"
    if row.counts:
        yield from _trials(handle)
    if row.state == "interrupted":
        yield f"  windlass sweep resume {row.name}   # it has no head"
    elif row.state == "running":
        yield f"  windlass sweep show {row.name} --follow | windlass sweep stop {row.name}"
    else:
        yield f"  windlass sweep best {row.name} | windlass sweep extend {row.name} --samples N"


def _trials(handle: SweepHandle) -> Iterator[str]:
    import io  # lazy: only this page

    from windlass.tune.views.watching import watch

    text = io.StringIO()
    watch(handle.folder, follows=False, stream=text)
    yield from (f"  {line}" for line in text.getvalue().rstrip("\n").split("\n"))


def sweep_data(handle: SweepHandle) -> dict[str, object]:
    """One sweep with its trials."""
    row = handle.row
    trials = handle.history.trials.values() if row.counts or row.state else ()
    return {**row_data(row), "trials": [trial_data(handle, trial) for trial in trials], "counts": row.counts}


def trial_data(handle: SweepHandle, trial: TrialHistory) -> dict[str, Any]:
    """One trial."""
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
    """The best trial, and how to run it again."""
    from windlass.tune.executors.runs import overrides_of, read_blueprint  # lazy: only this page
    from windlass.tune.sweep.record import RECORD, read_record

    goal = handle.history.goal.metrics
    name = metric or (goal[0] if goal else "")
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
        given = (one for one in read_blueprint(handle.folder).plan.overrides if not one.startswith("sweep."))
        words = shlex.join(["windlass", "launch", record.file, *given, *overrides_of(best.config)])
        yield printable(f"  {words}")
