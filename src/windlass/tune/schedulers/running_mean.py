"""The running mean of a trial's results, as it was at any time so far."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

__all__ = ["RunningMean"]


class RunningMean:
    """Means of all values so far, exact but for one rounding; 16 bytes for each value.

    Attributes:
        last: the time that was added last, counted or not.
    """

    __slots__ = ("_is_finite", "_means", "_parts", "_times", "last")

    def __init__(self) -> None:
        self.last = -math.inf
        self._times = array("d")
        self._means = array("d")
        self._parts: list[float] = []  # the exact sum, as numbers that do not overlap (Shewchuk 1997)
        self._is_finite = True

    def add(self, time: float, value: float) -> None:
        """Count one more value; times must not fall."""
        self._is_finite = self._is_finite and math.isfinite(value)
        if self._is_finite:
            _grow(self._parts, value)
        self._times.append(time)
        self._means.append(math.fsum(self._parts) / len(self._times) if self._is_finite else math.nan)

    def at(self, time: float) -> float:
        """The mean of the values up to and with a time; NaN of none, or if one of them is not finite."""
        index = bisect_right(self._times, time)
        return self._means[index - 1] if index else math.nan


def _grow(parts: list[float], value: float) -> None:
    kept = 0
    for part in parts:
        small, large = (value, part) if abs(value) < abs(part) else (part, value)
        total = large + small
        rounding = small - (total - large)
        if rounding:
            parts[kept] = rounding
            kept += 1
        value = total
    parts[kept:] = [value]
