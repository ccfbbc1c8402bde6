"""Clock: the only source of time in windlass, replaced in tests."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "FakeClock", "SystemClock", "format_time"]


class Clock(Protocol):
    """Source of wall time, for records, and of monotonic time, for decisions."""

    def now(self) -> float:
        """Return wall time, in seconds since 1970 UTC; it may jump, so it is only recorded."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back; all deadlines use it."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""


class SystemClock:
    """Clock of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """Clock that advances only on request; sleeping advances it."""

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
        """Advance both clocks by `seconds`."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a clock daemon does; monotonic time does not change."""
        self._now += seconds


def format_time(seconds: float) -> str:
    """Format wall time as `2026-11-21T05:04:09Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
