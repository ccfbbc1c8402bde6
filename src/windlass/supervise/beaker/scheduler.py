"""Beaker as the scheduler of a running job. The job has no token, so it cannot send requests to Beaker.

After a preemption Beaker requeues the same replicas by itself. After any other end of a job, a client that reconciles
the run submits the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.record.causes import Cause
from windlass.supervise.chain.scheduler import PastLink, SchedulerError

__all__ = ["BeakerScheduler"]


class BeakerScheduler:
    """Beaker as the scheduler of a running job; see `JobScheduler`."""

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """Raise SchedulerError: only clients submit jobs."""
        raise SchedulerError(f"a Beaker job cannot queue another job (link {link})")

    def queued(self) -> Mapping[int, str]:
        """Return an empty mapping: this is the only link, and the job does not manage it."""
        return {}

    def cancel(self, ids: Sequence[str]) -> None:
        """Do nothing: no other link is queued."""

    def let_go(self, ids: Sequence[str]) -> None:
        """Do nothing: dependent jobs are not held; each waits for its upstream tasks after it has started."""

    def requeue(self) -> None:
        """Do nothing: Beaker requeues a preempted job itself."""

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """Do nothing: no queued link exists that could exclude hosts."""

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """Return `Cause.PREEMPTED`: a signal from Beaker means that it takes the machines away."""
        return Cause.PREEMPTED, "Beaker takes its machines: for another job, or the experiment was cancelled"

    def is_over(self) -> bool:
        """Return False: this cannot be known inside the job."""
        return False

    def is_end_confirmed(self, past: PastLink) -> bool:
        """Return False: this cannot be known inside the job."""
        return False

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        """Return `Cause.NODE_LOST`: the cause is unknown inside the job; a client asks Beaker later."""
        # Beaker starts a job again by itself only after its machine failed; a preempted one was told so.
        return Cause.NODE_LOST, "its job ended without recording a result"
