"""Python garbage collection at the same step on all processes, so that the pauses coincide."""

from __future__ import annotations

import gc

from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Garbage"]


class Garbage(TrainerCallback):
    """Callback that replaces automatic garbage collection by one collection every `every` steps.

    Args:
        every: steps between collections, counted over all resumptions.
    """

    def __init__(self, *, every: int = 1000) -> None:
        self.every = every
        self._was_enabled = False

    def on_start(self) -> None:
        """Freeze the existing objects, which are mostly modules, and turn automatic collection off."""
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.collect(1)
        gc.freeze()  # a full collection would visit all of torch: half a second before the first step

    def on_step_end(self) -> None:
        """Collect when it is due."""
        if self.trainer.step % self.every == 0:
            gc.collect()

    def on_end(self) -> None:
        """Restore automatic collection."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
