"""Requests from a job to the scheduler that started it: queue the next link, cancel links, explain a notice.

A scheduler's job is a chain of links with the same job.json. Only the leader sends requests, and every call has a time
limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError
from windlass.record.causes import Cause

__all__ = ["JobScheduler", "PastLink", "SchedulerError"]


@dataclass(frozen=True)
class PastLink:
    """Earlier link, with data that distinguishes it from a later job to which a controller gave the same id.

    Attributes:
        job_id: the scheduler's id.
        began_at: wall time at which our code began in it.
        mark: mark of its job, see `ChainConfig.mark`.
        name: name of its job in the queue; empty if unknown.
        link: number of the link; 0 if unknown.
    """

    job_id: str
    began_at: float
    mark: str
    name: str = ""
    link: int = 0


class SchedulerError(UnreachableError):
    """Failed request to the scheduler, which may have carried it out nevertheless; retry later."""

    default_code = "scheduler-failed"


class JobScheduler(Protocol):
    """Scheduler of this job, called from inside the job. All calls block, for about twenty seconds at most."""

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """Queue a link and return its id. Idempotent: if the link exists, its id is returned.

        Args:
            exclude: hosts to exclude, in addition to those of the site.

        Raises:
            SchedulerError: it failed, or the result is unknown; calling again does not queue a second one.
        """

    def queued(self) -> Mapping[int, str]:
        """Return the ids of this job's waiting and running links by number, including this one.

        Raises SchedulerError.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """End links; idempotent; raises SchedulerError."""

    def let_go(self, ids: Sequence[str]) -> None:
        """Release held jobs of tasks that wait for this one; idempotent; raises SchedulerError."""

    def requeue(self) -> None:
        """Let the scheduler restart this job; raises SchedulerError if the site forbids it."""

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """Exclude more hosts from waiting links; idempotent; raises SchedulerError."""

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """Return why a signal reached this job; (Cause.UNKNOWN, "") if the scheduler does not say.

        Args:
            has_time: make more queries, so that a cancellation is not wrongly attributed to a user. Otherwise the call
                takes at most two seconds.
        """

    def is_over(self) -> bool:
        """Return whether this start has ended according to the scheduler, or is unknown to it.

        Raises SchedulerError.
        """

    def is_end_confirmed(self, past: PastLink) -> bool:
        """Return whether every node of an ended link confirmed its end; raises SchedulerError."""

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        """Return how an earlier link ended; (Cause.UNKNOWN, "") if unknown."""
