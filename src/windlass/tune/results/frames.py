"""Results as pandas frames, with the column names of Ray Tune. pandas is imported here alone, when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.core.errors import PreconditionError
from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.results.columns import flatten
from windlass.tune.results.rows import best_report, last_result, reports_of, rows_of
from windlass.tune.results.trial_view import trial_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["best_rows", "frame_of", "last_results", "pandas_module"]


def pandas_module() -> Any:
    """The module pandas.

    Raises:
        PreconditionError: it is not installed (`extra-missing`).
    """
    try:
        import pandas as pd  # lazy: 0.5 s, and only for who asks for a frame
    except ImportError as error:
        raise PreconditionError(
            "data frames need pandas, which is not installed",
            hint="pip install 'windlass[tune]'",
            code="extra-missing",
        ) from error
    return pd


def frame_of(trial: TrialHistory, history: History) -> pd.DataFrame:
    """All reports of a trial, one row each, oldest first; no columns without reports."""
    return pandas_module().DataFrame(list(rows_of(trial, history)))


def last_results(history: History) -> pd.DataFrame:
    """The newest report of each trial that has one, indexed by trial id."""
    rows = [flatten(last_result(trial, history)) for trial in history.trials.values() if trial.last]
    frame = pandas_module().DataFrame
    return frame.from_records(rows, index="trial_id") if rows else frame()


def best_rows(history: History, folder: str, metric: str | None, mode: str | None) -> pd.DataFrame:
    """One row per trial: its newest report, or the one with its best value of a metric.

    A trial that never reported the metric shows its newest report, as in Ray Tune; one that reported it as NaN only
    has no row.
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
