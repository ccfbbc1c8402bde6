"""Metrics of rollouts, recorded with the step that learns from them."""

from __future__ import annotations

from windlass.post.control.rollouts import RolloutLoader
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["RolloutMetrics"]


class RolloutMetrics(TrainerCallback):
    """Records the metrics of each batch of rollouts."""

    def __init__(self, loader: RolloutLoader) -> None:
        self._loader = loader

    def on_end(self) -> None:
        """End the processes of verifiers."""
        self._loader.close()

    def on_save(self, path: str, step: int) -> None:
        """Record the checkpoint in the log of samples."""
        del path
        kept = [each.step for each in self.trainer.store.committed()] if self.trainer.store is not None else []
        self._loader.commit(step, oldest_step=min([step, *kept]))

    def on_step_start(self, batch: object) -> None:
        """Record the metrics of the batch that this step learns from."""
        del batch
        for name, value in self._loader.metrics.items():
            self.trainer.record(name, value)
