"""Trace of some steps, for Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from windlass.train.callbacks.places import run_folder
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Profiler"]


class Profiler(TrainerCallback):
    """Callback that writes `traces/step-<first>-rank-<n>.json.gz`, once per process.

    The folder is the task's output or beside the checkpoints.

    Args:
        start: steps before the trace, counted from the start of this process, as a warm-up.
        steps: number of steps in the trace.
        ranks: processes that write a trace.
        has_memory: whether to trace allocations too, which is slower and makes a larger file.
        folder: folder for the trace; if empty, as above.

    Attributes:
        path: path of the trace; None before it is written.
    """

    priority = 200

    def __init__(
        self,
        *,
        start: int = 5,
        steps: int = 3,
        ranks: Sequence[int] = (0,),
        has_memory: bool = False,
        folder: str = "",
    ) -> None:
        self.start, self.steps, self.ranks, self.has_memory, self.folder = start, steps, ranks, has_memory, folder
        self.path: Path | None = None
        self._done = 0
        self._first = 0
        self._profile: Any = None

    def on_step_start(self, batch: Any) -> None:
        """Start the trace when it is due."""
        if self._profile is None and self.path is None and self._done >= self.start and self._is_chosen():
            activities = [ProfilerActivity.CPU]
            if self.trainer.world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._first = self.trainer.step + 1
            self._profile = profile(activities=activities, profile_memory=self.has_memory)
            self._profile.start()

    def on_step_end(self) -> None:
        """Write the trace after its last step."""
        self._done += 1
        if self._profile is not None and self.trainer.step >= self._first + self.steps - 1:
            self._write()

    def on_end(self) -> None:
        """Write the trace if training ends before it is complete."""
        if self._profile is not None:
            self._write()

    def _is_chosen(self) -> bool:
        return self.trainer.world.rank in self.ranks

    def _write(self) -> None:
        if self.trainer.world.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.world.device)
        finished, self._profile = self._profile, None
        finished.stop()
        folder = Path(self.folder) if self.folder else run_folder(self.trainer) / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"step-{self._first}-rank-{self.trainer.world.rank}.json.gz"
        finished.export_chrome_trace(str(self.path))
