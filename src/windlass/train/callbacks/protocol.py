"""Hooks of the trainer: subclass and override the ones you need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["TrainerCallback"]


class TrainerCallback:
    """Base class for callbacks; hooks run on every process, by `priority` (high first), then by name.

    Attributes:
        trainer: set before the first hook.
        priority: position among the callbacks; high runs first.
    """

    trainer: Trainer[Any]
    priority: int = 0

    def on_attach(self) -> None:
        """Run when the trainer has been built but nothing is loaded; may add callbacks, or raise for invalid settings."""

    def on_load(self, path: str) -> None:
        """Run after state has been loaded from a checkpoint."""

    def on_start(self) -> None:
        """Run when training begins or resumes."""

    def on_epoch(self, epoch: int) -> None:
        """Run at the start of each pass over the data."""

    def on_step_start(self, batch: Any) -> None:
        """Run when a batch has been fetched, before any computation."""

    def on_optim(self) -> None:
        """Run when gradients are complete, before the optimiser's step."""

    def on_step_end(self) -> None:
        """Run after the optimizer's step; `trainer.step` counts this step."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive a step's metrics, reduced over processes. Rank 0 only.

        Several steps may arrive at once, in order.

        All callbacks get the same dict, so a callback with a high priority can add to it.
        """

    def on_save(self, path: str, step: int) -> None:
        """Run after a checkpoint has been committed."""

    def on_error(self, error: BaseException) -> None:
        """Run when training ends with an error."""

    def on_end(self) -> None:
        """Run when training completes, stops or fails, on all processes unless one died."""

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-safe state to be saved in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
