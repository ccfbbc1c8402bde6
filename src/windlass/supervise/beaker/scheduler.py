"""Beaker as a running job can deal with it: it holds no token, so there is nothing to ask; Beaker acts by itself.

After a preemption Beaker queues the same replicas again. After anything else that ends a job, a client that looks at
the run makes the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.record.causes import Cause
from windlass.supervise.chain.scheduler import PastLink, SchedulerError

__all__ = ["BeakerScheduler"]


class BeakerScheduler:
    """See `windlass.supervise.chain.scheduler.Scheduler`."""

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """Never possible: jobs are made by clients alone."""
        raise SchedulerError(f"a job of Beaker cannot queue another (link {link})")

    def queued(self) -> Mapping[int, str]:
        """None but this one, which is not ours to end."""
        return {}

    def cancel(self, ids: Sequence[str]) -> None:
        """Nothing waits behind a job."""

    def let_go(self, ids: Sequence[str]) -> None:
        """Nothing is held: a job waits for the tasks before it on its own machines."""

    def requeue(self) -> None:
        """Beaker does that itself, where it took the machines."""

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """Nothing waits that could keep away from hosts."""

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """A signal from Beaker announces that it takes the machines: for another job, or since somebody cancelled."""
        return Cause.PREEMPTED, "Beaker takes its machines, for another job or since the experiment was cancelled"

    def is_over(self) -> bool:
        """Nobody here knows."""
        return False

    def is_end_confirmed(self, past: PastLink) -> bool:
        """Nobody here knows."""
        return False

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        """Nobody here knows; a client asks Beaker."""
        return Cause.UNKNOWN, ""
