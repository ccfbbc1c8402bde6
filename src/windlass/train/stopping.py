"""Stop requests from signals, windlass, callbacks, or the end of the allocation.

Each process only knows its own requests. The loop combines them over all processes at the boundary between two
steps, so that all stop at the same step.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import Any

from windlass import report

__all__ = ["MARGIN_S", "UNKNOWN_SAVE_S", "StopReason", "StopRequests", "end_of_allocation"]

MARGIN_S = 15.0
"""Time in addition to the save that a process needs to exit before its allocation ends."""
UNKNOWN_SAVE_S = 60.0
"""Assumed duration of a save until one is measured."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopReason(Enum):
    """Reason why training stopped before it was complete."""

    SIGNAL = "a signal"
    WINDLASS = "requested by windlass"
    DEADLINE = "end of the allocation"
    REQUEST = "requested by a callback"


class StopRequests:
    """Stop requests that this process has received. A check takes microseconds.

    Args:
        asks_report: whether this process asks windlass; one per node is enough.
        save_s: returns the seconds that a save would take now; None if unknown.
        now: wall clock in seconds since 1970.
        deadline: wall time at which this process will be ended; None if unlimited.
    """

    def __init__(
        self,
        *,
        asks_report: bool = True,
        save_s: Callable[[], float | None] = lambda: None,
        now: Callable[[], float] = time.time,
        deadline: Callable[[], float | None] | None = None,
    ) -> None:
        self._asks_report = asks_report
        self._save_s = save_s
        self._now = now
        self._deadline = deadline or end_of_allocation
        self._heard: StopReason | None = None
        self._earlier: dict[int, Any] = {}

    def request(self, reason: StopReason = StopReason.REQUEST) -> None:
        """Request a stop. Only the first reason is kept."""
        self._heard = self._heard or reason

    def forget(self) -> None:
        """Clear the requests after they have been handled."""
        self._heard = None

    def reason(self, step_s: float = 0.0) -> StopReason | None:
        """Return the reason to stop at the next boundary, or None to continue.

        Args:
            step_s: how long the next step may take.
        """
        if self._heard is None:
            if self._asks_report and report.should_stop():
                self._heard = StopReason.WINDLASS
            elif self._is_late(step_s):
                self._heard = StopReason.DEADLINE
        return self._heard

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Treat SIGTERM, SIGUSR1 and the first SIGINT as stop requests. Does nothing outside the main thread.

        Previous handlers are called too, and restored afterwards.
        """
        if threading.current_thread() is threading.main_thread():
            self._earlier = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in self._earlier.items():
                signal.signal(number, handler)
            self._earlier = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_second = self._heard is StopReason.SIGNAL
        self._heard = self._heard or StopReason.SIGNAL
        earlier = self._earlier.get(number)
        if earlier is signal.default_int_handler:
            if is_second:
                raise KeyboardInterrupt
        elif callable(earlier):
            earlier(number, frame)

    def _is_late(self, step_s: float) -> bool:
        """Return whether a save might end too late if it begins after one more step."""
        deadline = self._deadline()
        if deadline is None:
            return False
        save_s = self._save_s()
        need_s = UNKNOWN_SAVE_S if save_s is None else 1.5 * save_s
        return self._now() + step_s + need_s + MARGIN_S > deadline


def end_of_allocation(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the wall time at which this job ends according to windlass or else Slurm, or None if unknown."""
    if report.is_active():
        return report.place().deadline
    text = environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isdigit() else None
