"""Stoppers based on metrics, iterations, time or a function, and combinations of stoppers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from windlass.core.clock import Clock, SystemClock
from windlass.tune.errors import BadValueError
from windlass.tune.space.values import import_name
from windlass.tune.stopper.protocol import Stopper, stopper_settings
from windlass.tune.trial import Metrics

__all__ = [
    "CombinedStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "MetricStopper",
    "NoopStopper",
    "TimeoutStopper",
]

_MANY = 1_000_000


class NoopStopper:
    """Stopper that never stops anything."""

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        return False

    def stop_all(self) -> bool:
        """Return False, because this stopper never ends the sweep."""
        return False

    def credit(self, trial_id: str) -> int:
        """Return the largest credit, because no report needs an answer."""
        del trial_id
        return _MANY

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        return {"type": "NoopStopper"}


class MetricStopper(NoopStopper):
    """Stopper for `stop={"training_iteration": 10}`, which ends a trial once a metric reaches its bound.

    The first report of a sweep must have all metrics, because a misspelt one would never stop a trial; later reports
    may lack some.
    """

    def __init__(self, bounds: Mapping[str, Any], *, waits: bool = False) -> None:
        """Set the bound of each metric.

        Args:
            bounds: metrics to numbers.
            waits: the first report may lack metrics, because code may log some less often.

        Raises:
            UsageError: a bound is not a number, or is NaN.
        """
        for name, bound in bounds.items():
            if not isinstance(bound, (int, float)) or math.isnan(bound):
                inner = next(iter(bound), "b") if isinstance(bound, Mapping) else ""
                raise BadValueError(
                    f"stop: the bound of `{name}` is {bound!r}, not a number to reach",
                    hint=f"write `{name}/{inner}` for a nested name"
                    if inner
                    else f"pass for example stop={{{name!r}: 10}}",
                    code="invalid-value",
                )
        self.bounds: dict[str, float] = dict(bounds)
        self.waits = waits
        self._seen: dict[str, int] = {}

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        self._seen[trial_id] = result.get("training_iteration", 0)
        for name, bound in self.bounds.items():
            value = result.get(name)
            if value is not None and _as_number(name, value) >= bound:
                del self._seen[trial_id]
                return True
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the first report must have."""
        return () if self.waits else tuple(self.bounds)

    def credit(self, trial_id: str) -> int:
        """Return the number of reports before the bound on `training_iteration`, if that is the only bound."""
        if set(self.bounds) != {"training_iteration"}:
            return 1
        return max(int(self.bounds["training_iteration"]) - self._seen.get(trial_id, 0) - 1, 1)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        return {"type": "MetricStopper", "bounds": self.bounds, **({"waits": True} if self.waits else {})}


class MaximumIterationStopper(NoopStopper):
    """Stopper that ends a trial after `max_iter` results."""

    def __init__(self, max_iter: int) -> None:
        """Set the number of results.

        Raises:
            UsageError: it is not a whole number of 1 or more.
        """
        if not is_whole(max_iter, 1):
            raise BadValueError(
                f"MaximumIterationStopper has max_iter={max_iter!r}",
                hint="use a whole number of 1 or more",
                code="invalid-value",
            )
        self.max_iter = int(max_iter)
        self._counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        count = self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        return count >= self.max_iter

    def credit(self, trial_id: str) -> int:
        """Return how many more results a trial may report before its final one."""
        return max(self.max_iter - self._counts.get(trial_id, 0) - 1, 1)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        return {"type": "MaximumIterationStopper", "max_iter": self.max_iter}


class FunctionStopper(NoopStopper):
    """Stopper that ends a trial when a function of the trial's id and result returns True."""

    def __init__(self, function: Callable[[str, Metrics], Any]) -> None:
        self.function = function

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        try:
            return bool(self.function(trial_id, result))
        except Exception as error:
            reported = ", ".join(f"`{name}`" for name in result)
            raise BadValueError(
                f"the stop function {_name_of(self.function)} failed on a report of trial {trial_id}: {error!r}",
                hint=f"the report has {reported}; use result.get(name) for metrics that only some reports have",
                code="user-code-failed",
            ) from error

    def credit(self, trial_id: str) -> int:
        """Return 1, because the function needs every result."""
        del trial_id
        return 1

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`.

        A function without an importable name must be passed again.
        """
        return {"type": "FunctionStopper", "function": import_name(self.function) or _name_of(self.function)}


class TimeoutStopper(NoopStopper):
    """Stopper that ends the sweep after some time, counted from its first call.

    A Tuner converts it to the sweep's `time_budget_s`, which covers all heads, and times in which no trial reports.
    """

    def __init__(self, timeout: float | timedelta, *, clock: Clock | None = None) -> None:
        """Set the time budget.

        Raises:
            UsageError: it is neither a number of seconds nor a timedelta, or not above 0.
        """
        seconds: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise BadValueError(
                f"invalid timeout of a sweep {timeout!r}",
                hint="pass seconds above 0, or a datetime.timedelta",
                code="invalid-value",
            )
        self.timeout_s = float(seconds)
        self._left_s = self.timeout_s
        self._clock = clock or SystemClock()
        self._asked_at: float | None = None

    def stop_all(self) -> bool:
        """Return whether the time budget is used up."""
        now = self._clock.monotonic()
        if self._asked_at is not None:
            self._left_s -= now - self._asked_at
        self._asked_at = now
        return self._left_s <= 0

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        return {"type": "TimeoutStopper", "timeout": self.timeout_s}


class CombinedStopper(NoopStopper):
    """Stopper that stops when any of several stoppers does; those after it are then not called."""

    def __init__(self, *stoppers: Stopper) -> None:
        self.stoppers = stoppers

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        return any(stopper(trial_id, result) for stopper in self.stoppers)

    def stop_all(self) -> bool:
        """Return whether any of the stoppers ends the sweep."""
        return any(stopper.stop_all() for stopper in self.stoppers)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the first report must have."""
        return tuple(name for one in self.stoppers for name in metrics_of(one))

    def credit(self, trial_id: str) -> int:
        """Return the smallest credit of all stoppers."""
        return min((getattr(one, "credit", _one)(trial_id) for one in self.stoppers), default=_MANY)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `Stopper.settings`."""
        return {"type": "CombinedStopper", "stoppers": [stopper_settings(one) for one in self.stoppers]}


def metrics_of(stopper: object) -> tuple[str, ...]:
    """Return the metrics that the first report must have; empty for stopper classes that are not windlass's own."""
    is_ours = isinstance(getattr(type(stopper), "metrics", None), property)
    return tuple(stopper.metrics) if is_ours else ()  # type: ignore[attr-defined]


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is an integer of at least `least`."""
    return isinstance(value, numbers.Real) and float(value).is_integer() and float(value) >= least


def _as_number(name: str, value: Any) -> float:
    if isinstance(value, (int, float)):
        return value
    hint = f"report {name!r} as a float"
    raise BadValueError(
        f"stop has a bound on {name!r}, but a trial reported {value!r}", hint=hint, code="invalid-value"
    )


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _one(trial_id: str) -> int:
    del trial_id
    return 1
