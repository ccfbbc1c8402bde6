"""Monitor of running trials, which detects quiet trials and shows the trials' output."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TextIO

from windlass.tune.executors.local.slots import LocalSlots
from windlass.tune.executors.local.stacks import read_stacks
from windlass.tune.executors.output import log_names, log_path

__all__ = ["LOOK_EVERY_S", "OutputTail", "QuietTrials", "TrialMonitor"]


LOOK_EVERY_S = 1.0


class TrialMonitor:
    """Monitor that checks trials once a second; each report costs a microsecond.

    Args:
        folder: the sweep's folder.
        options: options of the work: `quiet_factor`, `quiet_floor_s`, `shows_output`, `log_to_file`.
    """

    def __init__(self, folder: str, options: Mapping[str, Any]) -> None:
        self._quiet_trials = QuietTrials(options.get("quiet_factor", 20.0), options.get("quiet_floor_s", 60.0))
        self._echo = OutputTail(folder, log_names(options.get("log_to_file"))) if options.get("shows_output") else None
        self._looked_at = 0.0
        self._notes: list[tuple[str, str]] = []

    def began(self, trial: str) -> None:
        """Start monitoring a trial."""
        self._quiet_trials.began(trial, time.monotonic())
        if self._echo is not None:
            self._echo.began(trial)

    def reported(self, trial: str) -> None:
        """Record that a trial has reported."""
        self._quiet_trials.reported(trial, time.monotonic())

    def halted(self, trial: str) -> None:
        """Stop expecting reports from a trial that has been ordered to end."""
        self._quiet_trials.ended(trial)

    def ended(self, trial: str) -> None:
        """Stop monitoring a trial."""
        self._quiet_trials.ended(trial)
        if self._echo is not None:
            self._echo.ended(trial)

    def look(self, slots: LocalSlots) -> None:
        """Find trials that have gone quiet, and show new output."""
        if self._echo is not None:
            self._echo.look()
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for trial, seconds, step_s in self._quiet_trials.quiet(now):
            slot = slots.running(trial)
            if slot is not None and slot.pid:
                usual = f"a step usually takes {step_s:.3g} s" if step_s else "it has not reported yet"
                stacks = read_stacks(slot.pid, slot.stacks) or "its stacks cannot be read"
                self._notes.append((trial, f"no report for {seconds:.3g} s, and {usual}; it is here:\n{stacks}"))

    def take_notes(self) -> list[tuple[str, str]]:
        """Return the new notes as (trial, text); each note is returned only once."""
        notes, self._notes = self._notes, []
        return notes


_LOOK_EVERY_S = 0.2
_MOST_BYTES = 1 << 16


class OutputTail:
    """Display of new lines in the logs of running trials.

    Args:
        names: names of the log files.
        out: stream to write to; each line starts with the trial's id.
    """

    def __init__(self, folder: str, names: tuple[str, str], out: TextIO | None = None) -> None:
        self._folder = folder
        self._names = tuple(dict.fromkeys(names))
        self._out = out
        self._read: dict[str, list[int]] = {}
        self._looked_at = 0.0

    def began(self, trial: str) -> None:
        """Start following a trial's log."""
        self._read[trial] = [_size(log_path(self._folder, trial, name)) for name in self._names]

    def ended(self, trial: str) -> None:
        """Show the remaining output of a trial, and stop following its log."""
        self._show(trial, is_end=True)
        self._read.pop(trial, None)

    def look(self) -> None:
        """Show new output, a few times a second."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        for trial in self._read:
            self._show(trial)

    def _show(self, trial: str, *, is_end: bool = False) -> None:
        for number, name in enumerate(self._names):
            path = log_path(self._folder, trial, name)
            while _size(path) > self._read.get(trial, [0, 0])[number]:
                with open(path, "rb") as file:
                    file.seek(self._read[trial][number])
                    piece = file.read(_MOST_BYTES)
                end = len(piece) if is_end or len(piece) == _MOST_BYTES else piece.rfind(b"\n") + 1
                self._write(trial, piece[:end])
                self._read[trial][number] += end
                if end < len(piece) or not piece:
                    break

    def _write(self, trial: str, piece: bytes) -> None:
        out = self._out or sys.stderr
        for line in piece.decode(errors="backslashreplace").splitlines():
            out.write(f"({trial}) {line}\n")
        out.flush()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


_NUM_STEPS = 15


@dataclass(slots=True)
class _Watched:
    reported_at: float
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_STEPS))
    is_noted: bool = False


class QuietTrials:
    """Detector of trials that have not reported for much longer than usual. Pure: the time is an argument.

    Args:
        factor: multiple of the median step time after which a trial is quiet.
        floor_s: minimum seconds before a trial is quiet; ten times as long before the first report.
    """

    def __init__(self, factor: float = 20.0, floor_s: float = 60.0) -> None:
        self._factor, self._floor_s = factor, floor_s
        self._watched: dict[str, _Watched] = {}

    def began(self, trial: str, now: float) -> None:
        """Record that a trial has started."""
        self._watched[trial] = _Watched(now)

    def reported(self, trial: str, now: float) -> None:
        """Record that a trial has reported."""
        watched = self._watched.get(trial)
        if watched is not None:
            watched.steps_s.append(now - watched.reported_at)
            watched.reported_at, watched.is_noted = now, False

    def ended(self, trial: str) -> None:
        """Forget a trial that has ended."""
        self._watched.pop(trial, None)

    def quiet(self, now: float) -> list[tuple[str, float, float]]:
        """Return (trial, seconds without a report, median step or 0) for each trial that has become quiet."""
        found = []
        for trial, watched in self._watched.items():
            seconds = now - watched.reported_at
            if not watched.is_noted and seconds > self._limit_s(watched):
                watched.is_noted = True
                found.append((trial, seconds, median(watched.steps_s) if watched.steps_s else 0.0))
        return found

    def _limit_s(self, watched: _Watched) -> float:
        if not watched.steps_s:
            return 10 * self._floor_s
        return max(self._floor_s, self._factor * median(watched.steps_s))
