"""Tokens per second, fraction of the device's peak, and time spent waiting for data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from windlass.train.callbacks.device_peaks import peak_flops
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Speed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """Totals since this process started, taken at the end of a step."""

    at_s: float
    tokens: int
    flops: float
    wait_s: float


class Speed(TrainerCallback):
    """Callback that records rates over the last steps, and `speed/mfu` if the device's peak is known.

    A GPU lags behind the host, so timing a single step is inaccurate: rates cover the steps of one metrics collection, or
    `window` steps. They exclude a process's first step, which compiles and allocates, but include evaluations and saves
    between two steps.

    Args:
        peak_tflops: peak of one device; if None, looked up by the device's name.
        window: number of steps; 0 for as many as are collected at once.
        now: a monotonic clock in seconds.
    """

    def __init__(
        self, *, peak_tflops: float | None = None, window: int = 0, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.peak_tflops, self.window, self._now = peak_tflops, window, now
        self._peak: float | None = None
        self._marks: deque[_Mark] = deque()
        self._tokens, self._flops, self._wait_s = 0, 0.0, 0.0

    def on_start(self) -> None:
        """Look up the device's peak and reset the rates."""
        named = peak_flops(_device_name(self.trainer.world.device))
        self._peak = named if self.peak_tflops is None else self.peak_tflops * 1e12
        self._marks = deque(maxlen=1 + (self.window or self.trainer.collect_every))
        self._tokens, self._flops, self._wait_s = 0, 0.0, 0.0

    def on_step_end(self) -> None:
        """Record the rates for the steps up to this one."""
        trainer = self.trainer
        self._tokens += trainer.step_tokens
        self._flops += self._own_flops() if self._peak is not None else 0.0
        self._wait_s += trainer.data_wait_s
        mark = _Mark(at_s=self._now(), tokens=self._tokens, flops=self._flops, wait_s=self._wait_s)
        self._marks.append(mark)
        trainer.record("speed/data_wait_s", trainer.data_wait_s, "max")
        first = self._marks[0]
        passed_s = mark.at_s - first.at_s
        if mark is first or passed_s <= 0.0:
            return
        trainer.record("speed/step_s", passed_s / (len(self._marks) - 1), "mean")
        trainer.record("speed/tokens_per_s", (mark.tokens - first.tokens) / passed_s, "none")
        trainer.record("speed/data_wait_share", (mark.wait_s - first.wait_s) / passed_s, "max")
        if self._peak is not None and mark.flops > first.flops:
            trainer.record("speed/mfu", (mark.flops - first.flops) / passed_s / self._peak, "mean")

    def _own_flops(self) -> float:
        """Return the operations that this process performs.

        Tensor-parallel processes share the work on their rows.
        """
        world = self.trainer.world
        flops: float = self.trainer.module.flops(self.trainer.batch)
        return flops * world.share.world / world.size


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
