"""Progress and chosen metrics on the terminal: one line per interval."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TextIO

from windlass import report
from windlass.train.callbacks.config import ConsoleConfig
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.duration import Duration

__all__ = ["Compiling", "Console", "format_metric"]

SHORT_NAMES = {
    "train/loss": "loss",
    "optim/lr": "lr",
    "optim/grad_norm": "norm",
    "speed/tokens_per_s": "tok/s",
    "speed/mfu": "mfu",
}
"""Short names of common metrics; for other metrics, the part before the first slash is dropped, except `eval/`."""


class Console(TrainerCallback):
    """Callback that writes progress, metrics and the remaining time to standard error on rank 0.

    On a terminal, fields that do not fit the width are dropped; a file has whole lines. Steps with a shown `eval/`
    metric also get a line, and so does the last collected step.

    Args:
        every: steps between lines; a process's first step always has one.
        metrics: globs of metric names; printed in this order.
        stream: stream to write to; if None, `sys.stderr` at the time when a line is written.
        now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        every: int = 10,
        metrics: Sequence[str] = ConsoleConfig().metrics,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.every, self.metrics, self._stream, self._now = every, tuple(metrics), stream, now
        self._begin_s, self._begin_share = 0.0, 0.0
        self._is_first = True
        self._waiting: list[str] = []

    def on_start(self) -> None:
        """Print a start line, and record the step and the time."""
        self._begin_s, self._begin_share, self._is_first = self._now(), self._share(), True
        world = self.trainer.world
        if world.is_main:
            processes = "1 process" if world.size == 1 else f"{world.size} processes"
            self._write([f"{self._place(self.trainer.step)}  training on {processes}, {world.device.type}"])

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line if one is due."""
        shown = self._chosen(metrics)
        fields = [self._place(step), *(format_metric(name, metrics[name]) for name in shown)]
        is_evaluation = any(name.startswith("eval/") for name in shown)
        if self._is_first or step % self.every == 0 or is_evaluation:
            self._is_first, self._waiting = False, []
            self._write([field for field in (*fields, self._rest()) if field])
        else:
            self._waiting = fields

    def on_end(self) -> None:
        """Print the line of the last step, unless it was printed already."""
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def _chosen(self, metrics: Mapping[str, float]) -> list[str]:
        names = [name for glob in self.metrics for name in metrics if fnmatchcase(name, glob)]
        return list(dict.fromkeys(names))

    def _place(self, step: int) -> str:
        last = self._last_step()
        return f"step {step}" if last is None else f"step {step}/{last}"

    def _last_step(self) -> int | None:
        """Return the last step of this run, or None if it is unknown."""
        steps = [self.trainer.step_at(end) for end in self._ends()]
        known = [step for step in steps if step is not None]
        return min(known) if len(known) == len(steps) else None

    def _ends(self) -> list[Duration]:
        return [self.trainer.duration, *([self.trainer.stop] if self.trainer.stop is not None else [])]

    def _share(self) -> float:
        """Return the completed fraction of the run, which ends at `stop` if that is set; 0 if unknown."""
        trainer = self.trainer
        return max(_share_done(end, trainer.step, trainer.tokens, trainer.step_at(end)) for end in self._ends())

    def _rest(self) -> str:
        """Return the remaining time at the average speed of this process."""
        share = self._share()
        done, passed_s = share - self._begin_share, self._now() - self._begin_s
        if done <= 0.0 or share >= 1.0 or passed_s <= 0.0:
            return ""
        return f"{format_time(passed_s * (1.0 - share) / done)} left"

    def _write(self, fields: Sequence[str]) -> None:
        stream = self._stream or sys.stderr
        width = shutil.get_terminal_size().columns if stream.isatty() else 0
        stream.write(_fitting(fields, width) + "\n")
        stream.flush()


def format_metric(name: str, value: float) -> str:
    """Format a metric in a short form: `loss 3.214`, `tok/s 12.4k`, `mfu 38.2%`."""
    short = SHORT_NAMES.get(name) or (name if name.startswith("eval/") else name.partition("/")[2] or name)
    if not math.isfinite(value):
        return f"{short} {value}"
    if name.endswith(("mfu", "_share")):
        return f"{short} {100.0 * value:.1f}%"
    if name.endswith("/lr"):
        return f"{short} {value:.2e}"
    return f"{short} {_number(value)}"


def format_time(seconds: float) -> str:
    """Format seconds as `12s`, `4m10s`, `3h05m` or `2d03h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def _number(value: float) -> str:
    size = abs(value)
    for bound, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= bound:
            scale = 1e3 if unit == "k" else bound
            return f"{value / scale:.1f}{unit}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0.0 else f"{value:.2e}"


def _fitting(fields: Sequence[str], width: int) -> str:
    """Return a line with as many whole fields as fit into `width` columns, at least one; with 0, all of them."""
    line = ""
    for field in fields:
        longer = f"{line}  {field}" if line else field
        if width and line and len(longer) > width:
            break
        line = longer
    return line


def _share_done(end: Duration, step: int, tokens: int, last_step: int | None) -> float:
    if end.unit == "tokens":  # epochs are counted exactly, not rounded to whole batches
        return min(1.0, tokens / end.value) if end.value else 1.0
    if last_step is None:
        return 0.0
    return min(1.0, step / last_step) if last_step else 1.0


class Compiling(TrainerCallback):
    """Callback that reports the start of compilation and the duration of the first step.

    Args:
        stream: stream to write to; if None, `sys.stderr` at the time when a line is written.
        now: a monotonic clock in seconds.
    """

    priority = -1  # after the console's first line

    def __init__(self, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._began_s: float | None = None
        self._is_done = False

    def on_step_start(self, batch: Any) -> None:
        """Report the start of compilation before this process's first step."""
        if not self._is_done and self._began_s is None:
            self._began_s = self._now()
            report.progress("init", step=self.trainer.step)  # so that compiling does not look like a stall
            self._tell(
                "compiling the model; the first step can take minutes (disable it with `parallel.compile=false`)"
            )

    def on_step_end(self) -> None:
        """Report how long the first step took."""
        if not self._is_done and self._began_s is not None:
            self._is_done = True
            self._tell(f"compiled: the first step took {format_time(self._now() - self._began_s)}")

    def _tell(self, text: str) -> None:
        if self.trainer.world.is_main:
            stream = self._stream or sys.stderr
            stream.write(text + "\n")
            stream.flush()
