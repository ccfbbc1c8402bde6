"""A quantile of a growing set of numbers: O(log n) to add one, O(1) to ask."""

from __future__ import annotations

import math
from heapq import heappop, heappush

__all__ = ["RunningQuantile"]


class RunningQuantile:
    """The quantile that numpy's `nanquantile(values, share)` gives, bit for bit, without keeping them sorted.

    Two heaps: those up to the quantile, largest on top, and those above it. As values only come, the border between
    them only moves up.
    """

    __slots__ = ("_above", "_below", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._below: list[float] = []  # negated
        self._above: list[float] = []

    def add(self, value: float) -> None:
        """Take in one number; NaN does not count."""
        if math.isnan(value):
            return
        if self._below and value < -self._below[0]:
            heappush(self._below, -value)
        else:
            heappush(self._above, value)
        num_below = math.floor((len(self._below) + len(self._above) - 1) * self._share) + 1
        while len(self._below) < num_below:
            heappush(self._below, -heappop(self._above))
        while len(self._below) > num_below:
            heappush(self._above, -heappop(self._below))

    @property
    def value(self) -> float:
        """The quantile, between two neighbours by linear interpolation; NaN of nothing."""
        if not self._below:
            return math.nan
        place = (len(self._below) + len(self._above) - 1) * self._share
        low = -self._below[0]
        high = self._above[0] if self._above else low
        part = place - math.floor(place)
        gap = high - low
        return high - gap * (1 - part) if part >= 0.5 else low + gap * part
