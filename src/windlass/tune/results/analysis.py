"""`ExperimentAnalysis`: analysis of a sweep, using the method names of Ray Tune's class."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.results.columns import flatten, is_nan
from windlass.tune.results.errors import BestTrialError, MetricError
from windlass.tune.results.frames import TrialFrames, best_rows, frame_of, last_results, pandas_module
from windlass.tune.results.result import Result
from windlass.tune.results.scores import best_trial, check_mode, metric_names
from windlass.tune.results.trial_view import TrialView, find_trial
from windlass.tune.trial import ANONYMOUS_METRIC

if TYPE_CHECKING:
    import pandas as pd

    from windlass.tune.trainable.checkpoint import Checkpoint

__all__ = ["ExperimentAnalysis"]


class ExperimentAnalysis:
    """Analysis of a sweep's trials and their reports, read from its journal.

    Args:
        source: the sweep's folder, or its history.
        default_metric: metric for methods that are called without one; by default the sweep's.
        default_mode: mode for methods that are called without one; by default the sweep's.
        assumed_mode: mode if none is given anywhere; Ray Tune's first interface assumed `max`.
        folder: the sweep's folder, if `source` is a history.

    Raises:
        NotFoundError: the folder holds no sweep.
        MetricError: the mode is invalid.
    """

    def __init__(
        self,
        source: str | Path | History,
        *,
        default_metric: str | None = None,
        default_mode: str | None = None,
        assumed_mode: str | None = None,
        folder: str | Path = "",
    ) -> None:
        self.history = source if isinstance(source, History) else read_history(source)
        self._folder = str(folder) if isinstance(source, History) else str(source)
        objectives = self.history.objectives
        self._modes = {
            name: "max" if up else "min" for name, up in zip(objectives.metrics, objectives.is_max, strict=True)
        }
        half = self.history.half
        own = next(iter(self._modes), "") or half.metric or (ANONYMOUS_METRIC if half.mode else "")
        self.default_metric = default_metric or own or None
        given = check_mode(default_mode) if default_mode else None
        self.default_mode = given or self._modes.get(self.default_metric or "") or half.mode or assumed_mode

    # ------------------------------------------------------------------------------------------------- all trials

    @property
    def experiment_path(self) -> str:
        """Folder of the sweep."""
        return self._folder

    @cached_property
    def trials(self) -> list[TrialView]:
        """Trials in the order in which they were suggested."""
        return [TrialView(trial, self.history, self._folder) for trial in self.history.trials.values()]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Newest result of each trial, by trial id."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> pd.DataFrame:
        """Newest results as a frame that is indexed by trial id; needs pandas."""
        return last_results(self.history)

    @property
    def trial_dataframes(self) -> TrialFrames:
        """Frame with all reports of each trial, by trial id; needs pandas."""
        return TrialFrames(self.history)

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """Return a row for each trial that has reported: its newest result, or that with its best value of a metric.

        Raises:
            MetricError: a mode without a metric, or an invalid mode (`unknown-metric`).
        """
        if mode and not metric:
            raise MetricError(f"mode {mode!r} without a metric", hint="pass the metric too: dataframe('loss', 'min')")
        if mode:
            check_mode(mode)
        return best_rows(self.history, self._folder, metric, mode)

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the configuration of each trial by id.

        With `prefix` they are flat, and their names start with `config/`.
        """
        return {
            trial_id: flatten(trial.config, prefix="config/") if prefix else trial.config
            for trial_id, trial in self.history.trials.items()
        }

    def stats(self) -> dict[str, Any]:
        """Return the times (seconds since the epoch) and counts of the sweep."""
        return {
            "start_time": self.history.created_at,
            "timestamp": self.history.last_at,
            "num_reports": self.history.num_reports,
            "counts": {str(status): count for status, count in self.history.counts.items() if count},
        }

    # --------------------------------------------------------------------------------------------------- one trial

    def result_of(self, trial: TrialView | str) -> Result:
        """Return the result of a trial, given its id or its view.

        Raises:
            TrialMissingError: the sweep has no such trial.
        """
        view = self.trial(trial) if isinstance(trial, str) else trial
        return Result(view, lambda: frame_of(view.history, self.history))

    def trial(self, trial_id: str) -> TrialView:
        """Return a trial, given its id or its number.

        Raises:
            TrialMissingError: the sweep has no such trial.
        """
        return find_trial(self.history, self._folder, trial_id)

    # -------------------------------------------------------------------------------------------------- the best one

    @property
    def best_trial(self) -> TrialView:
        """Best trial according to the newest values of the default metric."""
        metric, mode = self._defaults("best_trial")
        found = self.get_best_trial(metric, mode)
        if found is None:
            raise BestTrialError(f"no trial reported a number for {metric!r}", hint=self._reported())
        return found

    @property
    def best_config(self) -> dict[str, Any]:
        """Configuration of the best trial."""
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """Newest result of the best trial."""
        return self.best_trial.last_result

    @property
    def best_result_df(self) -> pd.DataFrame:
        """Newest result of the best trial, as a frame with one row; needs pandas."""
        return pandas_module().DataFrame.from_records([flatten(self.best_result)], index="trial_id")

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """All reports of the best trial; needs pandas."""
        return frame_of(self.best_trial.history, self.history)

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Checkpoint of the best trial with the best value of the default metric."""
        metric, mode = self._defaults("best_checkpoint")
        return self.get_best_checkpoint(self.best_trial, metric, mode)

    @property
    def best_logdir(self) -> str:
        """Folder for the best trial's files."""
        return self.best_trial.path

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> TrialView | None:
        """Return the trial with the best score, or None if no trial has a score.

        A single trial is always the best.

        Args:
            scope: which value to compare: the `last`, the best of `all`, or `avg`, `last-5-avg`, `last-10-avg`.
            filter_nan_and_inf: ignore trials whose score is NaN or infinite.

        Raises:
            MetricError: the metric or mode is missing or invalid (`unknown-metric`).
        """
        if len(self.trials) == 1:
            return self.trials[0]
        found = best_trial(
            self.history,
            metric=self._metric(metric),
            mode=self._mode(mode, metric),
            scope=scope,
            filter_nan_and_inf=filter_nan_and_inf,
        )
        return TrialView(found, self.history, self._folder) if found else None

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Return the configuration of the trial that `get_best_trial` returns, or None."""
        found = self.get_best_trial(metric, mode, scope)
        return found.config if found else None

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str | None:
        """Return the folder of the trial that `get_best_trial` returns, or None."""
        found = self.get_best_trial(metric, mode, scope)
        return found.path if found else None

    def get_best_checkpoint(
        self, trial: TrialView | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Return a trial's kept checkpoint with the best value of a metric, or by default the newest. Ignores NaN."""
        view = self.trial(trial) if isinstance(trial, str) else trial
        name = metric or self.default_metric or "training_iteration"
        sign = -1 if self._mode(mode, metric) == "min" else 1
        scored = [
            (sign * metrics[name], checkpoint)
            for checkpoint, metrics in view.best_checkpoints
            if isinstance(metrics.get(name), int | float) and not is_nan(metrics[name])
        ]
        return max(scored, key=lambda item: item[0])[1] if scored else None

    def get_last_checkpoint(
        self, trial: TrialView | str | None = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Checkpoint | None:
        """Return the newest checkpoint of a trial, which by default is the best one by metric and mode."""
        found = self.get_best_trial(metric, mode) if trial is None else trial
        return self.get_best_checkpoint(found, "training_iteration", "max") if found is not None else None

    def get_trial_checkpoints_paths(
        self, trial: TrialView | str, metric: str | None = None
    ) -> list[tuple[str, float | None]]:
        """Return the path and the metric's value for each checkpoint of a trial that has been kept."""
        view = self.trial(trial) if isinstance(trial, str) else trial
        name = metric or self.default_metric or "training_iteration"
        return [(checkpoint.path, metrics.get(name)) for checkpoint, metrics in view.best_checkpoints]

    # ---------------------------------------------------------------------------------------------------- defaults

    def _metric(self, metric: str | None) -> str:
        found = metric or self.default_metric
        if not found:
            raise MetricError("no metric was given, neither here nor in the sweep", hint=self._reported())
        return found

    def _mode(self, mode: str | None, metric: str | None) -> str:
        found = mode or self._modes.get(metric or "") or self.default_mode
        if not found:
            raise MetricError("no mode was given, neither here nor in the sweep", hint="pass mode='min' or mode='max'")
        return check_mode(found)

    def _defaults(self, name: str) -> tuple[str, str]:
        if not self.default_metric or not self.default_mode:
            raise MetricError(
                f"{name} needs the sweep's metric and mode, which are not set",
                hint="set them in TuneConfig, or call get_best_trial(metric, mode)",
            )
        return self.default_metric, self.default_mode

    def _reported(self) -> str:
        names = metric_names(self.history.trials.values())
        return f"reported: {', '.join(names)}" if names else "no trial has reported a number yet"
