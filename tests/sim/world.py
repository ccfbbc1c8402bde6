"""Virtual time: one heap of events, one source of randomness, one trace. Nothing here sleeps or looks at a clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

__all__ = ["Violation", "World"]

Action = Callable[..., None]


class Violation(Exception):  # an invariant, not an error a person can act on
    """An invariant does not hold; the message says which and how."""


class World:
    """A virtual universe that one seed determines.

    Args:
        is_traced: keep a line of text for everything that happens.
    """

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.trace: list[str] = []
        self.num_events = 0
        self._is_traced = is_traced
        self._heap: list[tuple[float, int, Action, tuple[object, ...]]] = []
        self._num_scheduled = 0

    def at(self, delay: float, action: Action, *args: object) -> None:
        """Call `action` after `delay` seconds of virtual time; equal times in the order scheduled."""
        self._num_scheduled += 1
        heapq.heappush(self._heap, (self.now + max(0.0, delay), self._num_scheduled, action, args))

    def skip(self, delay: float) -> bool:
        """Let `delay` seconds pass at once, unless something happens before; return whether they have passed."""
        if self._heap and self._heap[0][0] <= self.now + delay:
            return False
        self.now += delay
        return True

    def run(self, is_done: Callable[[], bool], *, until: float, max_events: int) -> None:
        """Let time pass until `is_done`.

        Raises:
            Violation: it is not done after `until` seconds or `max_events` events.
        """
        while not is_done():
            if not self._heap or self._heap[0][0] > until or self.num_events >= max_events:
                raise Violation(f"no end after {self.now:.0f} s and {self.num_events} events")
            self.now, _, action, args = heapq.heappop(self._heap)
            self.num_events += 1
            action(*args)

    def log(self, text: str, *values: object) -> None:
        """Trace one thing; the text is only formatted when somebody reads it."""
        if self._is_traced:
            self.trace.append(f"{self.now:10.3f}  {text % values if values else text}")

    def uniform(self, low: float, high: float) -> float:
        """A number between two."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability
