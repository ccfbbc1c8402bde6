"""Reports from a sweep's trials as pandas frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.core.extras import require
from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.results.columns import flatten
from windlass.tune.results.rows import best_report, last_result, reports_of, rows_of
from windlass.tune.results.trial_view import trial_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TrialFrames", "best_rows", "frame_of", "last_results", "pandas_module"]


class TrialFrames(Mapping[str, "pd.DataFrame"]):
    """Mapping from trial ids to frames with the trial's reports, which are created on access."""

    def __init__(self, sweep: History) -> None:
        self._sweep = sweep
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, trial_id: str) -> pd.DataFrame:
        if trial_id not in self._made:
            self._made[trial_id] = frame_of(self._sweep.trials[trial_id], self._sweep)
        return self._made[trial_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sweep.trials)

    def __len__(self) -> int:
        return len(self._sweep.trials)


def pandas_module() -> Any:
    """Import pandas and return the module.

    Raises:
        PreconditionError: it is not installed (`extra-missing`).
    """
    # lazy: takes 0.5 s, and is needed only for frames
    return require("pandas", "data frames need pandas, which is not installed", hint="pip install 'windlass[tune]'")


def frame_of(trial: TrialHistory, history: History) -> pd.DataFrame:
    """Return a frame with one row per report from a trial, oldest first; without columns if there are no reports."""
    return pandas_module().DataFrame(list(rows_of(trial, history)))


def last_results(history: History) -> pd.DataFrame:
    """Return the newest report from each trial that has one, indexed by trial id."""
    rows = [flatten(last_result(trial, history)) for trial in history.trials.values() if trial.last]
    frame = pandas_module().DataFrame
    return frame.from_records(rows, index="trial_id") if rows else frame()


def best_rows(history: History, folder: str, metric: str | None, mode: str | None) -> pd.DataFrame:
    """Return a row for each trial: its newest report, or that with its best value of a metric.

    A trial that never reported the metric has its newest report, as in Ray Tune; a trial that reported only NaN has no
    row.
    """
    rows = []
    for trial in history.trials.values():
        reports = reports_of(trial)
        report = reports[-1] if reports else None
        if metric and mode and any(metric in other.metrics for other in reports):
            report = best_report(trial, metric, mode)
        if report:
            config = flatten(trial.config, prefix="config/")
            filled = flatten(last_result(trial, history, report))
            rows.append({**filled, **config, "logdir": trial_folder(folder, trial.id)})
    return pandas_module().DataFrame(rows)
