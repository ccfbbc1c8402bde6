"""Event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.train.callbacks.optional import ensure_there, is_there, require
from windlass.train.callbacks.places import run_folder
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["TensorBoard"]

USER = "callbacks of kind `tensorboard`"


class TensorBoard(TrainerCallback):
    """Callback that writes on rank 0, with torch's writer if `tensorboard` is installed, else with `tensorboardX`.

    After a restart, TensorBoard discards the earlier values of repeated steps.

    Args:
        folder: empty: `tensorboard` in the task's output or beside the checkpoints.
    """

    def __init__(self, *, folder: str = "") -> None:
        self.folder = folder
        self._writer: Any = None
        self._make: Any = None

    def on_attach(self) -> None:
        """Raise if no package that can write event files is installed."""
        name = "torch.utils.tensorboard" if is_there("tensorboard") else "tensorboardX"
        if name == "tensorboardX":
            ensure_there(name, name, USER)
        if self.trainer.world.is_main:
            self._make = require(name, "tensorboardX", USER).SummaryWriter

    def on_start(self) -> None:
        """Open a file, whose values replace earlier ones from this step on."""
        if self._make is not None:
            folder = Path(self.folder) if self.folder else run_folder(self.trainer) / "tensorboard"
            step = self.trainer.step
            # File names contain the time in seconds: without the suffix, a quick restart would overwrite the previous file.
            self._writer = self._make(str(folder), purge_step=step + 1, filename_suffix=f".step-{step}")

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def on_save(self, path: str, step: int) -> None:
        """Flush the file, so that it is as complete as the checkpoint."""
        if self._writer is not None:
            self._writer.flush()

    def on_end(self) -> None:
        """Close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
