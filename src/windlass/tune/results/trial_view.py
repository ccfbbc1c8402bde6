"""Trial in an analysis, using the attribute names of Ray Tune's `Trial`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.controller.settings import RetentionPolicy
from windlass.tune.results.columns import AUTO_FILLED, NestedMetrics, is_nan
from windlass.tune.results.errors import TrialError, TrialMissingError
from windlass.tune.results.rows import last_result, reports_of, tag_at
from windlass.tune.results.scores import summary
from windlass.tune.trial import SavedState, TrialStatus

if TYPE_CHECKING:
    from windlass.tune.trainable.checkpoint import Checkpoint

__all__ = ["MetricSummaries", "TrialView", "find_trial", "trial_folder"]

TRIALS = "trials"


def trial_folder(folder: str, trial_id: str) -> str:
    """Return the folder for a trial's files."""
    return str(Path(folder, TRIALS, trial_id))


def find_trial(history: History, folder: str, trial_id: str) -> TrialView:
    """Return the view of a trial of the sweep in `folder`, given its id or its number.

    Raises:
        TrialMissingError: the sweep has no such trial.
    """
    found = history.trials.get(trial_id) or history.trials.get(f"{trial_id:0>5}")
    if found is None:
        raise TrialMissingError(
            f"sweep {history.name or folder} has no trial {trial_id!r}",
            hint=f"its {len(history.trials)} trials start at 00000" if history.trials else "it has no trials yet",
        )
    return TrialView(found, history, folder)


class MetricSummaries(Mapping[str, dict[str, Any]]):
    """Mapping from metrics to their values by scope, as in Ray's `metric_analysis`, computed on first use."""

    def __init__(self, trial: TrialHistory, sweep: History) -> None:
        self._trial = trial
        self._sweep = sweep

    def __getitem__(self, metric: str) -> dict[str, Any]:
        found = summary(self._trial, metric, self._sweep)
        if not found:
            raise KeyError(metric)
        return found

    def __iter__(self) -> Iterator[str]:
        names = {name: None for report in reports_of(self._trial) for name in report.metrics}
        return (name for name in {**names, **dict.fromkeys(AUTO_FILLED)} if summary(self._trial, name, self._sweep))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class TrialView:
    """View of a trial in an analysis. Views of the same trial are equal."""

    PENDING, RUNNING, PAUSED = TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED
    TERMINATED, ERROR = TrialStatus.TERMINATED, TrialStatus.ERROR

    def __init__(self, history: TrialHistory, sweep: History, folder: str) -> None:
        self.history = history
        self._sweep = sweep
        self._folder = folder

    @property
    def trial_id(self) -> str:
        """Id of the trial, which is unique within its sweep."""
        return self.history.id

    @property
    def config(self) -> dict[str, Any]:
        """Newest configuration, nested."""
        return self.history.config

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """Sampled values, flat."""
        return self.history.assigned

    @property
    def status(self) -> TrialStatus:
        """Status of the trial: PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""
        return self.history.status

    @property
    def experiment_tag(self) -> str:
        """Tag made of the trial's number and its sampled values."""
        return tag_at(self.history)

    @property
    def trainable_name(self) -> str:
        """Name of the trainable function or class."""
        return str(self._sweep.trainable.get("type", "")).rsplit(":", 1)[-1].rsplit(".", 1)[-1]

    @property
    def last_result(self) -> NestedMetrics:
        """Newest report with all added fields; empty before the first report."""
        return last_result(self.history, self._sweep)

    @property
    def metric_analysis(self) -> MetricSummaries:
        """Values `max`, `min`, `avg`, `last`, `last-5-avg` and `last-10-avg` for each metric."""
        return MetricSummaries(self.history, self._sweep)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Newest checkpoint that has been kept."""
        saved = self.history.checkpoint
        return self.checkpoint_at(saved) if saved else None

    def checkpoint_at(self, saved: SavedState) -> Checkpoint:
        """Return the checkpoint for a path in the journal, which may be relative to the sweep's folder."""
        from windlass.tune.trainable.checkpoint import Checkpoint  # lazy: only needed for checkpoints

        return Checkpoint(saved.path if "://" in saved.path else str(Path(self._folder, saved.path)))

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, NestedMetrics]]:
        """Kept checkpoints with their results; the best according to the sweep's policy is last."""
        found = [(saved, self._metrics_of(saved)) for saved in self.history.checkpoints]
        keep = self._sweep.settings.keep if self._sweep.settings else RetentionPolicy()
        if keep.score_attribute:
            sign = -1.0 if keep.order == "min" else 1.0
            found.sort(key=lambda item: _rank(item[1].get(keep.score_attribute), sign))
        limit = keep.num_to_keep or len(found)
        return [(self.checkpoint_at(saved), metrics) for saved, metrics in found[-limit:]] if found else []

    def _metrics_of(self, saved: SavedState) -> NestedMetrics:
        for report in reversed(reports_of(self.history)):
            if report.iteration == saved.iteration:
                return last_result(self.history, self._sweep, report)
        return NestedMetrics(training_iteration=saved.iteration)

    def get_error(self) -> TrialError | None:
        """Return the error that ended the trial, with its traceback, or None if it ended without one."""
        if self.history.status is TrialStatus.TERMINATED or not self.history.error:
            return None
        return TrialError(self.trial_id, self.history.kind, self.history.error)

    @property
    def path(self) -> str:
        """Folder for the trial's files, which exists only if the trial or a follower wrote any."""
        return trial_folder(self._folder, self.trial_id)

    @property
    def logdir(self) -> str:
        """Old name of `path`."""
        return self.path

    @property
    def local_path(self) -> str:
        """Same as `path`."""
        return self.path

    def is_finished(self) -> bool:
        """Return whether the trial has ended."""
        return self.history.status.is_over

    def __str__(self) -> str:
        return f"{self.trainable_name}_{self.trial_id}" if self.trainable_name else self.trial_id

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialView) and (other.trial_id, other._folder) == (self.trial_id, self._folder)

    def __hash__(self) -> int:
        return hash((self.trial_id, self._folder))


def _rank(value: Any, sign: float) -> tuple[bool, float]:
    """Return the sort key for a value; NaN and missing values rank lowest in both orders."""
    if not isinstance(value, int | float) or is_nan(value):
        return (False, 0.0)
    return (True, sign * value)
