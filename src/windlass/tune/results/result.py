"""`Result`: the outcome of one trial."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.tune.controller.journal.history import read_history
from windlass.tune.results.columns import AUTO_FILLED, NestedMetrics, is_nan
from windlass.tune.results.errors import BestTrialError, MetricError, TrialError
from windlass.tune.results.frames import frame_of
from windlass.tune.results.scores import check_mode
from windlass.tune.results.trial_view import TrialView, find_trial

if TYPE_CHECKING:
    import pandas as pd

    from windlass.tune.trainable.checkpoint import Checkpoint

__all__ = ["Result"]


class Result:
    """Outcome of one trial in a `ResultGrid`.

    Values are read on first use; only `metrics_dataframe` imports pandas.
    """

    def __init__(self, trial: TrialView, frame: Callable[[], pd.DataFrame]) -> None:
        self.trial = trial
        self._frame = frame

    @classmethod
    def from_path(cls, path: str | Path) -> Result:
        """Return the result of the trial that has this folder (`<sweep>/trials/<id>`), which need not exist.

        Raises:
            NotFoundError: the sweep or the trial does not exist.
        """
        folder, trial_id = Path(path).parent.parent, Path(path).name
        history = read_history(folder)
        trial = find_trial(history, str(folder), trial_id)
        return cls(trial, lambda: frame_of(trial.history, history))

    @cached_property
    def metrics(self) -> NestedMetrics:
        """Newest report, including all added fields; empty for a trial that has never reported."""
        return self.trial.last_result

    @property
    def config(self) -> dict[str, Any]:
        """Newest configuration of the trial."""
        return self.trial.config

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Newest checkpoint that has been kept."""
        return self.trial.checkpoint

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, NestedMetrics]]:
        """All kept checkpoints with their results, best last."""
        return self.trial.best_checkpoints

    @property
    def error(self) -> TrialError | None:
        """Error that ended the trial, with the trial's own traceback as its message."""
        return self.trial.get_error()

    @property
    def path(self) -> str:
        """Folder for the trial's files, which exists if the trial wrote any."""
        return self.trial.path

    @cached_property
    def metrics_dataframe(self) -> pd.DataFrame:
        """All reports as a pandas frame, with one row each, oldest first."""
        return self._frame()

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Return the kept checkpoint whose report has the best value of a metric.

        Raises:
            BestTrialError: the trial has no checkpoint (`sweep-no-best`).
            MetricError: no report of a checkpoint has the metric, or the mode is unknown (`unknown-metric`).
        """
        found = self.best_checkpoints
        if not found:
            raise BestTrialError(
                f"trial {self.trial.trial_id} has no checkpoint",
                hint="report one with tune.report(metrics, checkpoint=...), or set checkpoint_frequency",
            )
        check_mode(mode)
        scored = [(metrics[metric], checkpoint) for checkpoint, metrics in found if _is_score(metrics.get(metric))]
        if not scored:
            known = ", ".join(self.metrics) or "nothing"
            raise MetricError(f"no checkpoint of trial {self.trial.trial_id} has {metric!r}", hint=f"reported: {known}")
        pick = max if mode == "max" else min
        return pick(scored, key=lambda item: item[0])[1]

    def __repr__(self) -> str:
        return self.describe()

    def describe(self, indent: int = 0) -> str:
        """Return several lines that describe the result: error, reported metrics, path, checkpoint."""
        shown: dict[str, Any] = {"error": self.error.kind} if self.error else {}
        shown["metrics"] = {name: value for name, value in self.metrics.items() if name not in AUTO_FILLED}
        shown |= {"path": self.path, "checkpoint": self.checkpoint}
        body = ",\n".join(f"{' ' * (indent + 2)}{name}={value!r}" for name, value in shown.items())
        return f"{' ' * indent}Result(\n{body}\n{' ' * indent})"


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not is_nan(value)
