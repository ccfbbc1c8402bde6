"""Step times of a gang's replicas, and detection of stragglers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["StepTimer", "Stragglers"]

_NUM_KEPT = 32
_NUM_NEEDED = 5
_FELT_S = 0.1
"""Minimum difference in seconds; smaller ones are clock noise."""


class StepTimer:
    """Step time of one replica: the median of its last steps."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_NUM_KEPT)
        self._newest = (-1, 0.0)

    def on_step(self, step: int, now: float) -> None:
        """Record a report of a step; several reports of the same step count once."""
        last, at = self._newest
        if step <= last and last >= 0:
            return
        if last >= 0:
            self._steps.append((now - at) / (step - last))
        self._newest = (step, now)

    @property
    def step_s(self) -> float:
        """Return the seconds per step; 0 while unknown."""
        return _median(self._steps) if len(self._steps) >= _NUM_NEEDED else 0.0


class Stragglers:
    """Detector of replicas whose steps take far longer than those of the other replicas in the attempt.

    Args:
        factor: ratio to the median of the other replicas from which a replica is a straggler.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._step_s: dict[int, float] = {}
        self._named: set[tuple[int, int]] = set()

    def look(self, attempt: int, rank: int, step_s: float) -> str:
        """Record a replica's step time; if it is a straggler, return a description, once per attempt, otherwise ""."""
        self._step_s[rank] = step_s
        if not step_s or (attempt, rank) in self._named:
            return ""
        others = [other for number, other in self._step_s.items() if number != rank and other]
        if not others:
            return ""
        usual_s = _median(others)
        if step_s <= self._factor * usual_s or step_s - usual_s < _FELT_S:
            return ""
        self._named.add((attempt, rank))
        return f"takes {step_s:.3g} s per step, {step_s / usual_s:.1f} times the {usual_s:.3g} s of the others"


def _median(values: Iterable[float]) -> float:
    """Return the median; the module `statistics` takes 5 ms to import."""
    found = sorted(values)
    half = len(found) // 2
    return found[half] if len(found) % 2 else 0.5 * (found[half - 1] + found[half])
