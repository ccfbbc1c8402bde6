"""What a job may ask the scheduler that started it: queue the next link, cancel it, say why we must go.

A job on a scheduler is a chain of links, all of one job.json. Only the leader asks, and every call ends in bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError
from windlass.record.causes import Cause
from windlass.supervise.job import JobDocument

__all__ = ["JobScheduler", "PastLink", "SchedulerError", "scheduler_of"]


@dataclass(frozen=True)
class PastLink:
    """An earlier link, with what tells it from another job of the same id: a controller may give ids again.

    Attributes:
        job_id: the scheduler's own.
        began_at: wall time at which code of ours began in it.
        mark: of its job, see `Chain.mark`.
        name: of its job in the queue; empty: not known.
        link: its number; 0: not known.
    """

    job_id: str
    began_at: float
    mark: str
    name: str = ""
    link: int = 0


class SchedulerError(UnreachableError):
    """The scheduler did not do what was asked, or nobody knows whether it did; ask again later."""

    default_code = "scheduler-failed"


class JobScheduler(Protocol):
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

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """Why a signal reached this job, with words; (Cause.UNKNOWN, "") when the scheduler does not say.

        Args:
            has_time: ask more, so that nothing is taken for a person's wish that is none. Else it takes two seconds at
                most.
        """

    def is_over(self) -> bool:
        """Whether this start of the job is over for the scheduler, or unknown to it; raises SchedulerError."""

    def is_end_confirmed(self, past: PastLink) -> bool:
        """Whether every node of a link that is over has told so; False when nobody knows; raises SchedulerError."""

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        """How an earlier link ended, with words; (Cause.UNKNOWN, "") when nobody knows."""


def scheduler_of(job: JobDocument, link: int = 0) -> JobScheduler | None:
    """The scheduler that a job's chain is queued in; None for a job that is one process tree.

    Args:
        link: number of the link that asks; 0: not known.
    """
    if job.chain.scheduler == "beaker":
        from windlass.supervise.beaker.scheduler import BeakerScheduler  # lazy: as below

        return BeakerScheduler()
    if job.chain.scheduler != "slurm":
        return None
    from windlass.supervise.slurm.scheduler import SlurmScheduler  # lazy: a local job never needs it

    return SlurmScheduler(job, link=link)
