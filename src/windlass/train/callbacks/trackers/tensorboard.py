"""Event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.trackers.tensorboard import EventFile
from windlass.train.callbacks.places import run_folder
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["TensorBoard"]


class TensorBoard(TrainerCallback):
    """Callback that writes on rank 0. Needs no library.

    After a restart, TensorBoard discards the earlier values of repeated steps.

    Args:
        folder: folder for the files; if empty, `tensorboard` in the task's output or beside the checkpoints.
    """

    def __init__(self, *, folder: str = "") -> None:
        self.folder = folder
        self._file: EventFile | None = None

    def on_start(self) -> None:
        """Open a file, whose values replace earlier ones from this step on."""
        if not self.trainer.world.is_main:
            return
        folder = Path(self.folder) if self.folder else run_folder(self.trainer) / "tensorboard"
        try:
            self._file = EventFile(folder, self.trainer.step + 1)
        except OSError as error:
            raise PreconditionError(
                f"cannot write event files to {folder}: {error.strerror or error}",
                hint="set `folder` of the `tensorboard` callback",
                code="not-writable",
            ) from error

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        if self._file is not None:
            self._file.add(step, metrics)

    def on_end(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
