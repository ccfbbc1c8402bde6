"""Deadlines of an attempt: its job's walltime, and its task's remaining running time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause
from windlass.record.state import Attempt

__all__ = ["Deadlines", "Due"]


@dataclass(frozen=True)
class Due:
    """Expired deadline: its cause, and the time that code has to save before it is signalled."""

    cause: Cause
    message: str
    wait_s: float = 0.0


class Deadlines:
    """Deadlines of the running attempt, on the monotonic clock.

    Args:
        per_job_s: walltime of the scheduler's job if `ends_at` is set, otherwise of each attempt.
        ends_at: wall time at which the scheduler ends the job; 0 if there is none.
        time_s: total running time of all attempts.
        wall_offset: wall time minus monotonic time.
    """

    def __init__(
        self, *, per_job_s: float | None, ends_at: float, time_s: float | None, grace_s: float, wall_offset: float
    ) -> None:
        self._per_job_s, self._time_s, self._wall_offset = per_job_s, time_s, wall_offset
        self._link_ends_at = ends_at - wall_offset if ends_at else 0.0
        self.grace_s = min(grace_s, 0.1 * (per_job_s or 0.0))
        self._job_at = self._time_at = 0.0

    @property
    def time_message(self) -> str:
        """Return the message for reaching the time limit."""
        return f"limit.time of {self._time_s:g} s is over"

    def start(self, started_at: float, earlier: Iterable[Attempt]) -> None:
        """Start an attempt at `started_at`; `earlier` are the ended attempts of the task."""
        if self._time_s:
            self._time_at = started_at + self._time_s - _used_s(earlier)
        if self._link_ends_at:
            self._job_at = self._link_ends_at
        elif self._per_job_s:
            self._job_at = started_at + self._per_job_s

    def clear(self) -> None:
        """Clear the deadlines, because no attempt is running."""
        self._job_at = self._time_at = 0.0

    def is_time_over(self, attempts: Iterable[Attempt]) -> bool:
        """Return whether the attempts have used up the task's running time."""
        return bool(self._time_s) and (self._time_s or 0.0) <= _used_s(attempts)

    def is_link_too_short(self, now: float) -> bool:
        """Return whether the scheduler will end this job too soon for another attempt to be worthwhile."""
        return bool(self._link_ends_at) and self._link_ends_at - now < 2.0 * self.grace_s + 0.05 * (
            self._per_job_s or 0.0
        )

    def due(self, now: float, *, is_listening: bool, attempts: Iterable[Attempt]) -> Due | None:
        """Return the deadline of the running attempt that has expired, or None.

        Code that listens gets twice its longest save so far, plus a margin, before it is signalled.
        """
        if self._time_at and now >= self._time_at:
            return Due(Cause.TIMEOUT, self.time_message)
        if not self._job_at:
            return None
        margin_s = self._margin_s(attempts) if is_listening else 0.0
        if now < self._job_at - margin_s - self.grace_s:
            return None
        return Due(Cause.WALLTIME, f"the walltime of {self._per_job_s or 0.0:g} s ends", margin_s)

    def _margin_s(self, attempts: Iterable[Attempt]) -> float:
        per_job_s = self._per_job_s or 0.0
        longest_s = max((attempt.save_s for attempt in attempts), default=0.0)
        return min(2.0 * longest_s + min(60.0, 0.1 * per_job_s), 0.5 * per_job_s)

    def wall(self) -> float:
        """Return the first deadline as wall time, for users and their code; 0 if there is none."""
        first = min((at for at in (self._job_at, self._time_at) if at), default=0.0)
        return first + self._wall_offset if first else 0.0


def _used_s(attempts: Iterable[Attempt]) -> float:
    return sum(attempt.running_s for attempt in attempts)
