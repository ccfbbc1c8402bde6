"""A batch that grows while training goes on; the learning rate may follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.callbacks.schedules import current_value
from windlass.train.duration import Duration

__all__ = ["BatchSize"]


class BatchSize(TrainerCallback):
    """Calls the loader's `set_batch(tokens)` at the moments given, and again after a restart.

    Args:
        at: when; a moment is reached at the end of a step, so the next batch is the first of the new size.
        tokens: the batch from there on, over all processes.
        scale_lr: whether the learning rate is multiplied by the root of the growth.
    Source: the root: Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms".
    """

    def __init__(self, *, at: Sequence[Duration], tokens: Sequence[int], scale_lr: bool = False) -> None:
        self.at, self.tokens, self.scale_lr = tuple(at), tuple(tokens), scale_lr
        self._first = self._now = 0

    def on_attach(self) -> None:
        """Try all sizes. Raises SpecError where the loader cannot change its batch, or refuses one of them."""
        loader = self.trainer.loader
        set_batch = getattr(loader, "set_batch", None)
        self._first = self._now = int(getattr(loader, "batch_tokens", 0))
        if not callable(set_batch) or not self._first:
            message = f"the loader {type(loader).__name__} cannot change its batch"
            hint = "give it `batch_tokens` and `set_batch(tokens)`, or leave the callback out"
            raise SpecError([Problem(message, "loader-cannot", None, hint)])
        for tokens in (*self.tokens, self._first):
            set_batch(tokens)
        if self.scale_lr:
            self.trainer.schedule = self._scaled(self.trainer.schedule)

    def on_start(self) -> None:
        """The size that holds here, after a restart too."""
        self._set()

    def on_step_end(self) -> None:
        """Change the next batch, when it is time."""
        self.trainer.record("train/batch_tokens", float(self.trainer.step_tokens), "none")
        self._set()

    def _set(self) -> None:
        tokens = current_value(self._first, self.at, self.tokens, self.trainer)
        if tokens != self._now:
            self._now = tokens
            self.trainer.loader.set_batch(tokens)  # type: ignore[attr-defined]  # on_attach saw that it has it

    def _scaled(self, schedule: Callable[[int, int], float]) -> Callable[[int, int], float]:
        return lambda step, tokens: schedule(step, tokens) * math.sqrt(self._now / self._first)
