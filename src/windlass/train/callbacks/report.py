"""Metrics and heartbeats for windlass, if the run was launched by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from windlass import report
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Report"]


class Report(TrainerCallback):
    """Callback that writes metrics to the run's journal, and progress at most every `every_s` seconds.

    It does nothing in runs that windlass did not launch.

    Args:
        every_s: seconds between heartbeats.
        now: a monotonic clock in seconds.
    """

    def __init__(self, *, every_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self.every_s, self._now = every_s, now
        self._said_at = -float("inf")

    def on_attach(self) -> None:
        """Report that building has begun, so that a slow start does not look like a stall."""
        report.progress("init")

    def on_load(self, path: str) -> None:
        """Report that state has been loaded."""
        report.progress("load", step=self.trainer.step)

    def on_start(self) -> None:
        """Report the current position in training."""
        self._said_at = -float("inf")

    def on_step_end(self) -> None:
        """Send a heartbeat if one is due."""
        now = self._now()
        if now - self._said_at >= self.every_s:
            self._said_at = now
            report.progress("step", step=self.trainer.step)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report all metrics of a step."""
        report.metrics(metrics, step=step)
