"""`ResultGrid`: what `Tuner.fit` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.results.errors import BestTrialError, MetricError, TrialError
from windlass.tune.results.result import Result
from windlass.tune.results.scores import front_of, metric_names
from windlass.tune.trial import TrialStatus

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ResultGrid"]


class ResultGrid(Sequence[Result]):
    """Results of a sweep, in the order in which trials were suggested, each created on access.

    Args:
        analysis: the sweep, or its folder.
    """

    def __init__(self, analysis: ExperimentAnalysis | str | Path) -> None:
        self._source = analysis
        self._made: dict[int, Result] = {}

    @cached_property
    def analysis(self) -> ExperimentAnalysis:
        """Analysis of the sweep, whose journal is read on first use to save memory until then."""
        return self._source if isinstance(self._source, ExperimentAnalysis) else ExperimentAnalysis(self._source)

    @property
    def experiment_path(self) -> str:
        """Folder of the sweep."""
        return self._source.experiment_path if isinstance(self._source, ExperimentAnalysis) else str(self._source)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result with the best score.

        A single trial is always the best.

        Args:
            metric: metric to compare; by default the sweep's first.
            mode: `min` or `max`; by default the sweep's mode.
            scope: which value to compare: the `last`, the best of `all`, or `avg`, `last-5-avg`, `last-10-avg`.
            filter_nan_and_inf: ignore trials whose score is NaN or infinite.

        Raises:
            MetricError: the metric or mode is missing or invalid (`unknown-metric`).
            BestTrialError: no trial has a score (`sweep-no-best`).
        """
        best = self.analysis.get_best_trial(metric, mode, scope, filter_nan_and_inf)
        if best is None:
            raise self._no_best(metric or self.analysis.default_metric, filter_nan_and_inf)
        return self.analysis.result_of(best)

    def _no_best(self, metric: str | None, filter_nan_and_inf: bool) -> BestTrialError:
        names = metric_names(self.analysis.history.trials.values())
        reason = f"no trial reported a number for {metric!r}"
        if metric in names and filter_nan_and_inf:
            reason = f"all values of {metric!r} are NaN or infinite"
        known = f"reported: {', '.join(names)}" if names else "no trial has reported a number yet"
        return BestTrialError(f"no best trial: {reason}", hint=known)

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> pd.DataFrame:
        """Return a row for each trial: its newest report, or that with its best value of a metric. Needs pandas."""
        return self.analysis.dataframe(metric=filter_metric, mode=filter_mode)

    def pareto_front(
        self, metrics: Sequence[str] | None = None, modes: Sequence[str] | None = None, scope: str = "last"
    ) -> list[Result]:
        """Return the Pareto front: the results that no other dominates, sorted by the first metric, best first.

        Args:
            metrics: metrics to compare; by default those of the sweep.
            modes: `min` or `max` for each; by default those of the sweep.

        Raises:
            MetricError: the numbers of metrics and modes differ, or are 0 (`unknown-metric`).
        """
        objectives = self.analysis.history.objectives
        names = tuple(metrics or objectives.metrics)
        own = () if metrics else tuple("max" if up else "min" for up in objectives.is_max)
        ways = tuple(modes or own)
        if not names or len(names) != len(ways):
            raise MetricError(
                f"a Pareto front needs metrics and a mode for each, not {len(names)} and {len(ways)}",
                hint="pass for example pareto_front(['loss', 'size'], ['min', 'min'])",
            )
        front = front_of(self.analysis.history, names, ways, scope)
        return [self.analysis.result_of(trial.id) for trial in front]

    @property
    def errors(self) -> list[TrialError]:
        """Errors of the trials that have failed."""
        return [result.error for result in self if result.error]

    @property
    def num_errors(self) -> int:
        """Number of trials that have failed."""
        return self._count(TrialStatus.ERROR)

    @property
    def num_terminated(self) -> int:
        """Number of trials that have ended without an error."""
        return self._count(TrialStatus.TERMINATED)

    def _count(self, status: TrialStatus) -> int:
        return sum(trial.status is status for trial in self.analysis.history.trials.values())

    def __len__(self) -> int:
        return len(self.analysis.history.trials)

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        position = range(len(self))[index]
        if position not in self._made:
            self._made[position] = self.analysis.result_of(self.analysis.trials[position])
        return self._made[position]

    def __iter__(self) -> Iterator[Result]:
        return (self[position] for position in range(len(self)))

    def __repr__(self) -> str:
        body = ",\n".join(result.describe(indent=2) for result in self)
        return f"ResultGrid<[\n{body}\n]>"
