"""What a job may ask the scheduler that started it: queue the next link, cancel it, say why we must go.

A job on a scheduler is a chain of links, all of one job.json. Only the leader asks, and every call ends in bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from windlass.core.errors import UnreachableError
from windlass.record.causes import Cause
from windlass.supervise.job import JobDocument

__all__ = ["Scheduler", "SchedulerError", "scheduler_of"]


class SchedulerError(UnreachableError):
    """The scheduler did not do what was asked, or nobody knows whether it did; ask again later."""

    default_code = "scheduler-failed"


class Scheduler(Protocol):
    """The scheduler of this job, asked from inside it. All calls block, at most some twenty seconds each."""

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """Queue a link and return its id; idempotent: one that is there already is found.

        Args:
            exclude: hosts it keeps away from, beside those of the site.

        Raises:
            SchedulerError: it could not, or nobody knows; calling again makes no second one.
        """

    def queued(self) -> Mapping[int, str]:
        """Ids of the links of this job that wait or run, by number, this one included; raises SchedulerError."""

    def cancel(self, ids: Sequence[str]) -> None:
        """End links, wherever they are; idempotent; raises SchedulerError."""

    def let_go(self, ids: Sequence[str]) -> None:
        """Let jobs of other tasks that wait for this one start; idempotent; raises SchedulerError."""

    def requeue(self) -> None:
        """Have this very job started again by the scheduler; raises SchedulerError where the site forbids it."""

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """Keep links that wait away from hosts, beside those they avoid anyway; idempotent; raises SchedulerError."""

    def why_told_to_go(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """Why a signal reached this job, with words; (Cause.UNKNOWN, "") when the scheduler does not say.

        Args:
            has_time: ask more, so that nothing is taken for a person's wish that is none. Else it takes two seconds at
                most.
        """

    def has_heard(self, job_id: str) -> bool:
        """Whether every node of a job that is over has told so; False when nobody knows; raises SchedulerError."""

    def how_ended(self, job_id: str, began_at: float) -> tuple[Cause, str]:
        """How an earlier link ended, with words; (Cause.UNKNOWN, "") when nobody knows.

        Args:
            began_at: wall time at which code of ours began in it.
        """


def scheduler_of(job: JobDocument) -> Scheduler | None:
    """The scheduler that a job's chain is queued in; None for a job that is one process tree."""
    if job.chain.scheduler == "beaker":
        from windlass.supervise.beaker_scheduler import BeakerScheduler  # lazy: as below

        return BeakerScheduler()
    if job.chain.scheduler != "slurm":
        return None
    from windlass.supervise.slurm import SlurmScheduler  # lazy: a local job never needs it

    return SlurmScheduler(job)
