"""Stall detector: limits for silence in each phase of a training job, learned from the job itself.

Only code that reports progress is watched. The limit of a phase is ten times its longest gap so far (a 99th percentile
needs more samples than the first minutes of a job have), but never less than the floor. Until three gaps of a phase are
known, its limit is half an hour, since a first step compiles and a first save sets up; for steps it is 30 times the floor
(half an hour by default), so that a low floor detects a stall early.
"""

from __future__ import annotations

__all__ = ["StallDetector"]

_FACTOR = 10.0
_FIRST_LIMIT_S = 1800.0
"""Limit for init, load, save and eval while less than `_NUM_TO_LEARN` gaps are known."""

_FIRST_FLOORS = 30.0
"""Limit for steps in that case, in multiples of the floor."""

_NUM_TO_LEARN = 3


class StallDetector:
    """Detector of stalls in the reports of one replica.

    Args:
        floor_s: minimum silence before a phase counts as stalled.
    """

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._gaps: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._phase = ""
        self._step = -1
        self._at = 0.0

    def on_report(self, phase: str, step: int, now: float) -> None:
        """Record a report from the code."""
        if self._phase:
            gap = now - self._at
            self._gaps[self._phase] = max(gap, self._gaps.get(self._phase, 0.0))
            self._counts[self._phase] = self._counts.get(self._phase, 0) + 1
        self._phase, self._step, self._at = phase, step, now

    def forgive(self, seconds: float, now: float) -> None:
        """Do not count the last `seconds`, in which the code could not report."""
        self._at = min(self._at + seconds, now)

    def limit_s(self, phase: str) -> float:
        """Return the seconds of silence after which this phase counts as stalled."""
        if self._counts.get(phase, 0) < _NUM_TO_LEARN:
            first_s = _FIRST_FLOORS * self._floor_s if phase == "step" else _FIRST_LIMIT_S
            return max(first_s, _FACTOR * self._gaps.get(phase, 0.0), self._floor_s)
        return max(_FACTOR * self._gaps[phase], self._floor_s)

    def verdict(self, now: float) -> str:
        """Return why the code counts as stalled, or ""."""
        if not self._phase:
            return ""
        silence = now - self._at
        if silence <= self.limit_s(self._phase):
            return ""
        return f"no progress for {silence:.0f} s in phase {self._phase}" + (
            f", last step {self._step}" if self._step >= 0 else ""
        )
