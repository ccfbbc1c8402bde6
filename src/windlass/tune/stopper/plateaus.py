"""Stoppers that end a trial or the sweep when a metric no longer changes."""

from __future__ import annotations

import math
import numbers
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence

from windlass.tune.errors import BadValueError
from windlass.tune.stopper.limits import is_whole
from windlass.tune.trial import Metrics

__all__ = ["ExperimentPlateauStopper", "TrialPlateauStopper"]


class TrialPlateauStopper:
    """Stopper that ends a trial when its last results vary by less than a threshold."""

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        """Define the plateau.

        Args:
            metric: metric that is compared.
            std: standard deviation (of the population) below which a trial ends.
            num_results: number of newest values that are compared.
            grace_period: number of results before a trial may be stopped.
            metric_threshold: the newest value must be at least (`max`) or at most (`min`) this.
            mode: `min` or `max`; needed with a threshold.

        Raises:
            UsageError: a threshold has no mode, or another argument is invalid.
        """
        _check(
            "TrialPlateauStopper",
            (mode in ("min", "max", None), "mode", mode, '"min" or "max"'),
            (is_whole(num_results, 1), "num_results", num_results, "a whole number of 1 or more"),
            (is_whole(grace_period, 0), "grace_period", grace_period, "a whole number of 0 or more"),
            (_is_real(std), "std", std, "a number"),
        )
        if metric_threshold is not None and mode not in ("min", "max"):
            raise BadValueError(
                f"TrialPlateauStopper has metric_threshold={metric_threshold!r} but mode={mode!r}",
                hint='pass mode="max" if more is better, else mode="min"',
                code="invalid-value",
            )
        self.metric = metric
        self.std = std
        self.num_results = num_results
        self.grace_period = grace_period
        self.metric_threshold = metric_threshold
        self.mode = mode
        self._counts: dict[str, int] = {}
        self._values: dict[str, deque[float | None]] = {}

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        value = result.get(self.metric)
        values = self._values.setdefault(trial_id, deque(maxlen=self.num_results))
        values.append(value)
        count = self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        if count < self.grace_period or len(values) < self.num_results or self._is_short(value):
            return False
        return _spread(values) < self.std

    def stop_all(self) -> bool:
        """Return False, because this stopper never ends the sweep."""
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the first report must have."""
        return (self.metric,)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        names = ("metric", "std", "num_results", "grace_period", "metric_threshold", "mode")
        return {"type": "TrialPlateauStopper", **{name: getattr(self, name) for name in names}}

    def _is_short(self, value: float | None) -> bool:
        """Return whether the threshold has not been reached yet."""
        if self.metric_threshold is None:
            return False
        if value is None:
            return True
        return value > self.metric_threshold if self.mode == "min" else value < self.metric_threshold


class ExperimentPlateauStopper:
    """Stopper that ends the sweep when the best values of all trials no longer differ."""

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        """Define the plateau.

        Args:
            metric: metric that is compared; results without it, or with NaN, are ignored.
            std: standard deviation (of the population) at or below which the best are a plateau.
            top: number of best values that are compared.
            mode: `min` or `max`.
            patience: number of consecutive results on the plateau before the sweep ends.

        Raises:
            UsageError: an argument is invalid.
        """
        _check(
            "ExperimentPlateauStopper",
            (mode in ("min", "max"), "mode", mode, '"min" or "max"'),
            (is_whole(top, 2), "top", top, "a whole number of 2 or more"),
            (is_whole(patience, 0), "patience", patience, "a whole number of 0 or more"),
            (_is_real(std) and std > 0, "std", std, "a number above 0"),
        )
        self.metric = metric
        self.std = std
        self.top = top
        self.mode = mode
        self.patience = patience
        self._best: list[float] = []
        self._num_flat = 0

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        value = result.get(self.metric)
        if value is not None and value == value:  # noqa: PLR0124 - NaN is not equal to itself
            insort(self._best, value)
            if len(self._best) > self.top:
                del self._best[-1 if self.mode == "min" else 0]
        self._num_flat = self._num_flat + 1 if self._is_flat() else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        """Return whether the best values have been constant for `patience` results."""
        return self._is_flat() and self._num_flat >= self.patience

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the first report must have; later reports may lack them."""
        return (self.metric,)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        names = ("metric", "std", "top", "mode", "patience")
        return {"type": "ExperimentPlateauStopper", **{name: getattr(self, name) for name in names}}

    def _is_flat(self) -> bool:
        return len(self._best) == self.top and _spread(self._best) <= self.std


def _check(name: str, *arguments: tuple[bool, str, object, str]) -> None:
    """Raise for the first invalid argument; each is given as (is valid, name, value, what to use)."""
    for is_right, argument, value, what in arguments:
        if not is_right:
            raise BadValueError(f"{name} has {argument}={value!r}", hint=f"use {what}", code="invalid-value")


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _spread(values: Sequence[float | None] | deque[float | None]) -> float:
    """Return the population standard deviation, or infinity if a value is not a number."""
    found = [value for value in values if isinstance(value, (int, float))]
    if len(found) < len(values):
        return math.inf
    mean = math.fsum(found) / len(found)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in found) / len(found))
