"""Stall detector: limits for the silence in each phase of a training job, learned from the job itself.

Only code that reports progress is watched. The limit of a phase is ten times its longest gap so far (a 99th percentile
needs more samples than the first minutes of a job have), but never less than the floor. Until three gaps of a phase are
known, its limit is half an hour, since a first step compiles and a first save sets up; for steps it is 30 times the floor
(half an hour by default), so that a low floor detects a stall early.

`StallWatch` feeds it with the reports of a replica's code, across restarts of the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

from windlass.record import events
from windlass.record.frames import Record
from windlass.supervise.fencing.fence import FenceDecision, FenceState

__all__ = ["StallDetector", "StallWatch"]

_FACTOR = 10.0
_FIRST_LIMIT_S = 1800.0
"""Limit for init, load, save and eval while less than `_NUM_TO_LEARN` gaps are known."""

_FIRST_FLOORS = 30.0
"""Limit for steps in that case, in multiples of the floor."""

_NUM_TO_LEARN = 3


class StallDetector:
    """Detector of stalls in the reports of one replica.

    Args:
        floor_s: minimum silence before a phase counts as stalled.
    """

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._gaps: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._phase = ""
        self._step = -1
        self._at = 0.0

    def on_report(self, phase: str, step: int, now: float) -> None:
        """Record a report from the code."""
        if self._phase:
            gap = now - self._at
            self._gaps[self._phase] = max(gap, self._gaps.get(self._phase, 0.0))
            self._counts[self._phase] = self._counts.get(self._phase, 0) + 1
        self._phase, self._step, self._at = phase, step, now

    def forgive(self, seconds: float, now: float) -> None:
        """Do not count the last `seconds`, in which the code could not report."""
        self._at = min(self._at + seconds, now)

    def limit_s(self, phase: str) -> float:
        """Return the seconds of silence after which this phase counts as stalled."""
        if self._counts.get(phase, 0) < _NUM_TO_LEARN:
            first_s = _FIRST_FLOORS * self._floor_s if phase == "step" else _FIRST_LIMIT_S
            return max(first_s, _FACTOR * self._gaps.get(phase, 0.0), self._floor_s)
        return max(_FACTOR * self._gaps[phase], self._floor_s)

    def verdict(self, now: float) -> str:
        """Return why the code counts as stalled, or ""."""
        if not self._phase:
            return ""
        silence = now - self._at
        if silence <= self.limit_s(self._phase):
            return ""
        return f"no progress for {silence:.0f} s in phase {self._phase}" + (
            f", last step {self._step}" if self._step >= 0 else ""
        )


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
