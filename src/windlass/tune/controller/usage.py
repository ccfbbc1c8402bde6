"""What a sweep has used: seconds in which a head lived, resources times seconds, and what they cost. No clock inside."""

from __future__ import annotations

from windlass.tune.controller.settings import SweepSettings
from windlass.tune.trial import Resources

__all__ = ["UsageMeter"]

_HOUR_S = 3600.0


class UsageMeter:
    """Times are those of the records, so a restored sweep reads the same. What passes between two heads costs nothing.

    Attributes:
        at: wall time up to which everything is counted; a tick up to then changes nothing.
    """

    __slots__ = ("_cost", "_cost_rate", "_gpu_rate", "_gpu_s", "_seconds", "at")

    def __init__(self) -> None:
        self.at = 0.0
        self._seconds = self._gpu_s = self._cost = 0.0
        self._gpu_rate = self._cost_rate = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in which heads lived, up to `at`."""
        return self._seconds

    def open(self, at: float) -> None:
        """A head begins."""
        self.at = at

    def tick(self, at: float) -> None:
        """Time passed up to `at`."""
        passed = at - self.at
        if passed > 0.0:
            self.at = at
            self._seconds += passed
            self._gpu_s += passed * self._gpu_rate
            self._cost += passed * self._cost_rate

    def take(self, resources: Resources, settings: SweepSettings, sign: int) -> None:
        """An attempt holds these resources from now (1), or no more (-1)."""
        if settings.gpu_hours or settings.max_cost:
            total = resources.total
            self._gpu_rate += sign * total.get("GPU", 0.0)
            self._cost_rate += sign * sum(total.get(name, 0.0) * price for name, price in settings.prices.items())

    def exceeded(self, settings: SweepSettings, now: float) -> str:
        """Which limit is reached at `now`, in one sentence; empty for none."""
        passed = max(0.0, now - self.at)
        if settings.time_budget_s and self._seconds + passed >= settings.time_budget_s:
            return f"the time budget of {settings.time_budget_s:g} s is used up"
        if settings.gpu_hours and (self._gpu_s + passed * self._gpu_rate) / _HOUR_S >= settings.gpu_hours:
            return f"{settings.gpu_hours:g} GPU-hours are used up"
        if settings.max_cost and (self._cost + passed * self._cost_rate) / _HOUR_S >= settings.max_cost:
            return f"the sweep has cost {settings.max_cost:g}"
        return ""
