"""Comparison of the progress of training with a length in steps, tokens or epochs."""

from __future__ import annotations

from typing import Protocol

from windlass.train.duration import Duration

__all__ = ["TrainingProgress", "is_due", "is_reached"]


class TrainingProgress(Protocol):
    """Progress of training, of a trainer or at a recorded position."""

    @property
    def step(self) -> int:
        """Number of optimizer steps taken."""

    @property
    def tokens(self) -> int:
        """Number of tokens used by all processes."""

    @property
    def epoch(self) -> int:
        """Number of complete passes over the data."""


def is_reached(length: Duration, progress: TrainingProgress) -> bool:
    """Return whether training has reached a length."""
    return _done(length, progress) >= length.value


def is_due(every: Duration, before: TrainingProgress, after: TrainingProgress) -> bool:
    """Return whether a multiple of `every` lies after `before` and not after `after`."""
    size = max(every.value, 1)
    return _done(every, after) // size > _done(every, before) // size


def _done(length: Duration, progress: TrainingProgress) -> int:
    if length.unit == "steps":
        return progress.step
    return progress.tokens if length.unit == "tokens" else progress.epoch
