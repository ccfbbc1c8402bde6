"""Which trials have gone quiet: no report for many times as long as one usually takes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["QuietTrials"]

_NUM_STEPS = 15


@dataclass(slots=True)
class _Watched:
    heard_at: float
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    is_told: bool = False


class QuietTrials:
    """Pure but for what it is told.

    Args:
        factor: times the median of the last steps after which a trial is quiet.
        floor_s: no trial is quiet before; before the first report, ten times this.
    """

    def __init__(self, factor: float = 20.0, floor_s: float = 60.0) -> None:
        self._factor, self._floor_s = factor, floor_s
        self._watched: dict[str, _Watched] = {}

    def began(self, trial: str, now: float) -> None:
        """A trial runs."""
        self._watched[trial] = _Watched(now)

    def heard(self, trial: str, now: float) -> None:
        """It reported."""
        watched = self._watched.get(trial)
        if watched is not None:
            watched.steps_s.append(now - watched.heard_at)
            watched.heard_at, watched.is_told = now, False

    def ended(self, trial: str) -> None:
        """It is over, or was told to end."""
        self._watched.pop(trial, None)

    def quiet(self, now: float) -> list[tuple[str, float, float]]:
        """(trial, seconds without a report, its median step or 0) of those that have gone quiet; each is told once."""
        found = []
        for trial, watched in self._watched.items():
            seconds = now - watched.heard_at
            if not watched.is_told and seconds > self._limit_s(watched):
                watched.is_told = True
                found.append((trial, seconds, median(watched.steps_s) if watched.steps_s else 0.0))
        return found

    def _limit_s(self, watched: _Watched) -> float:
        if not watched.steps_s:
            return 10 * self._floor_s
        return max(self._floor_s, self._factor * median(watched.steps_s))
