"""The one door to time: a `Clock` that the product asks and that tests drive."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "FakeClock", "SystemClock", "format_time"]


class Clock(Protocol):
    """Wall time for records, monotonic time for decisions."""

    def now(self) -> float:
        """Wall time, seconds since 1970 UTC; may jump, so only ever recorded."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; what every deadline is measured on."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told; sleeping moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a clock daemon does; monotonic time stays."""
        self._now += seconds


def format_time(seconds: float) -> str:
    """Wall time as `2026-11-21T05:04:09Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
