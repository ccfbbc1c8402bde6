"""Hooks of the trainer: subclass and override the ones you need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["TrainerCallback"]


class TrainerCallback:
    """Base class of callbacks; hooks run on every process, by `priority` (high first), then by name.

    Attributes:
        trainer: set before the first hook.
        priority: its place among callbacks.
    """

    trainer: Trainer[Any]
    priority: int = 0

    def on_attach(self) -> None:
        """The trainer is built, nothing is loaded yet; may add callbacks or raise for invalid settings."""

    def on_load(self, path: str) -> None:
        """State came from a checkpoint."""

    def on_start(self) -> None:
        """Training begins or resumes."""

    def on_epoch(self, epoch: int) -> None:
        """A pass over the data begins."""

    def on_step_start(self, batch: Any) -> None:
        """A batch was fetched, nothing is computed yet."""

    def on_optim(self) -> None:
        """Gradients are complete; the optimiser has not stepped yet."""

    def on_step_end(self) -> None:
        """The optimiser has stepped; `trainer.step` counts this step."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, reduced over processes; several steps may come at once, in order. Rank 0 only.

        All callbacks get the same dict, so one of a high priority may add to it.
        """

    def on_save(self, path: str, step: int) -> None:
        """A checkpoint is committed."""

    def on_error(self, error: BaseException) -> None:
        """Training ends with an error."""

    def on_end(self) -> None:
        """Training ends: complete, stopped or with an error; runs on all processes unless one died."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe state that goes into checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore that state."""
