"""What the head looks at while trials run: which have gone quiet, and what they print."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from windlass.tune.executors.local.output_tail import OutputTail
from windlass.tune.executors.local.quiet_trials import QuietTrials
from windlass.tune.executors.local.slots import LocalSlots
from windlass.tune.executors.local.stacks import read_stacks
from windlass.tune.executors.output import log_names

__all__ = ["LOOK_EVERY_S", "TrialMonitor"]

LOOK_EVERY_S = 1.0


class TrialMonitor:
    """Looks once a second; costs a microsecond per report.

    Args:
        folder: the sweep's.
        options: of the work: `quiet_factor`, `quiet_floor_s`, `shows_output`, `log_to_file`.
    """

    def __init__(self, folder: str, options: Mapping[str, Any]) -> None:
        self._watchdog = QuietTrials(options.get("quiet_factor", 20.0), options.get("quiet_floor_s", 60.0))
        self._echo = OutputTail(folder, log_names(options.get("log_to_file"))) if options.get("shows_output") else None
        self._looked_at = 0.0
        self._notes: list[tuple[str, str]] = []

    def began(self, trial: str) -> None:
        """A trial runs."""
        self._watchdog.began(trial, time.monotonic())
        if self._echo is not None:
            self._echo.began(trial)

    def heard(self, trial: str) -> None:
        """It reported."""
        self._watchdog.heard(trial, time.monotonic())

    def halted(self, trial: str) -> None:
        """It was told to end, and may be quiet."""
        self._watchdog.ended(trial)

    def ended(self, trial: str) -> None:
        """It is over."""
        self._watchdog.ended(trial)
        if self._echo is not None:
            self._echo.ended(trial)

    def look(self, slots: LocalSlots) -> None:
        """Note which trials have gone quiet, and show what is new of their output."""
        if self._echo is not None:
            self._echo.look()
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for trial, seconds, step_s in self._watchdog.quiet(now):
            slot = slots.running(trial)
            if slot is not None and slot.pid:
                usual = f"a step of it takes {step_s:.3g} s" if step_s else "it has not reported yet"
                stacks = read_stacks(slot.pid, slot.stacks) or "where it is cannot be seen"
                self._notes.append((trial, f"no report for {seconds:.3g} s, and {usual}; it is here:\n{stacks}"))

    def take_notes(self) -> list[tuple[str, str]]:
        """(trial, text), each once."""
        notes, self._notes = self._notes, []
        return notes
