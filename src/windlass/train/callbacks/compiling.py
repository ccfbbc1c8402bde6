"""A line before the first step of a compiled model, which takes minutes, and one after it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from windlass import report
from windlass.train.callbacks.console import format_time
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Compiling"]


class Compiling(TrainerCallback):
    """Tells when compilation begins and how long the first step took.

    Args:
        stream: None: standard error as it is when a line is written.
        now: a monotonic clock in seconds.
    """

    priority = -1  # behind the console's line of the start

    def __init__(self, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._began_s: float | None = None
        self._is_done = False

    def on_step_start(self, batch: Any) -> None:
        """Before the first step of this process."""
        if not self._is_done and self._began_s is None:
            self._began_s = self._now()
            report.progress("init", step=self.trainer.step)  # no stall, however long it takes
            self._tell("compiling the model; the first step can take minutes (`parallel.compile=false` does without)")

    def on_step_end(self) -> None:
        """Behind it."""
        if not self._is_done and self._began_s is not None:
            self._is_done = True
            self._tell(f"compiled: the first step took {format_time(self._now() - self._began_s)}")

    def _tell(self, text: str) -> None:
        if self.trainer.world.is_main:
            stream = self._stream or sys.stderr
            stream.write(text + "\n")
            stream.flush()
