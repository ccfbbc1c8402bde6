"""Batch size and row length that change at given points in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.duration import Duration
from windlass.train.progress import TrainingProgress, is_reached

__all__ = ["BatchSize", "SequenceLength", "current_value"]


def current_value(first: int, at: Sequence[Duration], values: Sequence[int], progress: TrainingProgress) -> int:
    """Return the value for the last point that has been reached, or `first` before any of them."""
    reached = [value for moment, value in zip(at, values, strict=True) if is_reached(moment, progress)]
    return reached[-1] if reached else first


class BatchSize(TrainerCallback):
    """Callback that calls the loader's `set_batch(tokens)` at the given points, and again after a restart.

    Args:
        at: moments of change; each is reached at the end of a step, so the next batch is the first of the new size.
        tokens: batch size from each moment on, over all processes.
        scale_lr: whether to multiply the learning rate by the square root of the batch's growth.
    Source: for the square root, Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms".
    """

    def __init__(self, *, at: Sequence[Duration], tokens: Sequence[int], scale_lr: bool = False) -> None:
        self.at, self.tokens, self.scale_lr = tuple(at), tuple(tokens), scale_lr
        self._first = self._now = 0

    def on_attach(self) -> None:
        """Test all sizes. Raises SpecError if the loader cannot change its batch size or rejects one of them."""
        loader = self.trainer.loader
        set_batch = getattr(loader, "set_batch", None)
        self._first = self._now = int(getattr(loader, "batch_tokens", 0))
        if not callable(set_batch) or not self._first:
            message = f"the loader {type(loader).__name__} cannot change its batch"
            hint = "implement `batch_tokens` and `set_batch(tokens)`, or remove the callback"
            raise SpecError([Problem(message, "unsupported-setting", None, hint)])
        for tokens in (*self.tokens, self._first):
            set_batch(tokens)
        if self.scale_lr:
            self.trainer.schedule = self._scaled(self.trainer.schedule)

    def on_start(self) -> None:
        """Set the size for the current step, also after a restart."""
        self._set()

    def on_step_end(self) -> None:
        """Change the size of the next batch when that is due."""
        self.trainer.record("train/batch_tokens", float(self.trainer.step_tokens), "none")
        self._set()

    def _set(self) -> None:
        tokens = current_value(self._first, self.at, self.tokens, self.trainer)
        if tokens != self._now:
            self._now = tokens
            self.trainer.loader.set_batch(tokens)  # type: ignore[attr-defined]  # on_attach checked that it exists

    def _scaled(self, schedule: Callable[[int, int], float]) -> Callable[[int, int], float]:
        return lambda step, tokens: schedule(step, tokens) * math.sqrt(self._now / self._first)


class SequenceLength(TrainerCallback):
    """Callback that calls the loader's `set_length(tokens)` at the given points, and again after a restart.

    Args:
        at: moments of change; `0 steps` sets the initial length.
        lengths: tokens per row from each moment on; divisors of the full length.
    """

    def __init__(self, *, at: Sequence[Duration], lengths: Sequence[int]) -> None:
        self.at, self.lengths = tuple(at), tuple(lengths)
        self._first = self._now = 0

    def on_attach(self) -> None:
        """Test all lengths. Raises SpecError if the loader cannot cut rows or rejects one of them."""
        loader = self.trainer.loader
        set_length = getattr(loader, "set_length", None)
        self._first = self._now = int(getattr(loader, "length", 0))
        if not callable(set_length) or not self._first:
            message = f"the loader {type(loader).__name__} cannot change the length of rows"
            hint = "implement `length` and `set_length(tokens)`, or remove the callback"
            raise SpecError([Problem(message, "unsupported-setting", None, hint)])
        for length in (*self.lengths, self._first):
            set_length(length)

    def on_start(self) -> None:
        """Set the length for the current step, also after a restart."""
        self._set()

    def on_step_end(self) -> None:
        """Change the length of the next rows when that is due."""
        self._set()

    def _set(self) -> None:
        length = current_value(self._first, self.at, self.lengths, self.trainer)
        if length != self._now:
            self._now = length
            self.trainer.loader.set_length(length)  # type: ignore[attr-defined]  # on_attach checked that it exists
