"""TrainingProgress against a length of steps, tokens or epochs; pure."""

from __future__ import annotations

from typing import Protocol

from windlass.train.duration import Duration

__all__ = ["TrainingProgress", "is_due", "is_reached"]


class TrainingProgress(Protocol):
    """TrainingProgress made: the trainer, or a record of it."""

    @property
    def step(self) -> int:
        """Steps of the optimiser."""

    @property
    def tokens(self) -> int:
        """Tokens over all processes."""

    @property
    def epoch(self) -> int:
        """Passes over the data."""


def is_reached(length: Duration, progress: TrainingProgress) -> bool:
    """Return whether the length is reached."""
    return _done(length, progress) >= length.value


def is_due(every: Duration, before: TrainingProgress, after: TrainingProgress) -> bool:
    """Return whether a multiple of `every` lies between two moments, the later one included."""
    size = max(every.value, 1)
    return _done(every, after) // size > _done(every, before) // size


def _done(length: Duration, progress: TrainingProgress) -> int:
    if length.unit == "steps":
        return progress.step
    return progress.tokens if length.unit == "tokens" else progress.epoch
