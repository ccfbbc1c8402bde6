"""Reports from a replica's code, as input for the stall detector across restarts of the supervisor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

from windlass.record import events
from windlass.record.frames import Record
from windlass.supervise.fencing.fence import FenceDecision, FenceState
from windlass.supervise.replica.watchdog import StallDetector

__all__ = ["StallWatch"]

_REPORTS = (events.PROGRESS, events.METRICS, events.CHECKPOINT)
_PHASES = {events.METRICS: "step", events.CHECKPOINT: "save"}
_STOPPED_AFTER_S = 5.0


class StallWatch:
    """Receiver of reports from one replica's code, which detects a stall.

    Args:
        floor_s: see `StallDetector`.
        lost_s: how long the fencing agent has stopped the code so far.
        on_step: called with each reported step and the time of the report.
    """

    def __init__(
        self, task: str, rank: int, floor_s: float, lost_s: float, on_step: Callable[[int, float], None] | None = None
    ) -> None:
        self._task, self._rank, self._floor_s = task, rank, floor_s
        self._lost_s, self._on_step = lost_s, on_step
        self._watchdog = StallDetector(floor_s)
        self._stopped_since = 0.0

    def begin(self) -> None:
        """Start over for a new process."""
        self._watchdog = StallDetector(self._floor_s)
        self._stopped_since = 0.0

    def on_record(self, record: Record, at: float, attempt: int) -> None:
        """Handle a record that arrived at `at` (monotonic); only reports of `attempt` count."""
        data = record.data
        if record.kind not in _REPORTS or data["task"] != self._task:
            return
        if data["rank"] == self._rank and data["attempt"] == attempt:
            phase = _PHASES.get(record.kind) or data["phase"]
            step = data["step"] if data["step"] is not None else -1
            self._watchdog.on_report(phase, step, at)
            if phase == "step" and self._on_step is not None:
                self._on_step(step, record.at)

    def learn(self, history: Iterable[Record], now: float, attempt: int) -> None:
        """Replay the reports that an earlier supervisor received; silence counts from now on."""
        records = sorted(history, key=lambda record: record.at)
        for record in records:
            self.on_record(record, record.at + now - records[-1].at, attempt)

    def verdict(
        self, now: float, decision: FenceDecision, read: Callable[[], None], is_stopped: Callable[[], bool]
    ) -> str:
        """Return why the code counts as stalled, or "".

        Args:
            read: passes records written meanwhile to `on_record`.
            is_stopped: whether the process is in state T, which is checked without any report.
        """
        self._watchdog.forgive(decision.lost_s - self._lost_s, now)
        self._lost_s = decision.lost_s
        if decision.state is not FenceState.FREE:  # the agent stopped the code, or it may hang as this process did
            self._stopped_since = 0.0
            return ""
        self._stopped_since = (self._stopped_since or now) if is_stopped() else 0.0
        read()
        message = self._watchdog.verdict(now)
        if not message and self._stopped_since and now > self._stopped_since + min(self._floor_s, _STOPPED_AFTER_S):
            message = "the process is stopped (SIGSTOP)"
        return message
