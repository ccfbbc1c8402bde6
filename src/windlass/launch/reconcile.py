"""The pure policy of any client that looks at a run: what to do about a task whose job may be gone.

Clients only reconcile; the supervisors in the job decide while they live. The observation must be made before the
facts are read: a supervisor that writes its last record and leaves in between is then seen as finished, not lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.backends import JobState
from windlass.record.causes import Cause
from windlass.record.retry import Budgets, decide
from windlass.record.state import State, Task

__all__ = ["Action", "EndTask", "MarkLost", "NextJob", "Submit", "Sweep", "has_loose_ends", "reconcile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit the intended job (again); the backend finds it by its token if it is there already."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLost:
    """Record that a job is gone without a last word, and end its attempt."""

    job: int
    attempt: int
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """Intend and submit the next job of the task."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTask:
    """Record the task's end, which no supervisor is left to record."""

    job: int
    attempt: int
    verdict: State
    cause: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """End what a job that is gone left behind, and record the ends of these replicas' processes."""

    job: int
    attempt: int
    ranks: tuple[int, ...]


Action = Submit | MarkLost | NextJob | EndTask | Sweep


def has_loose_ends(task: Task) -> bool:
    """Whether the task ended while nobody knows the end of a process of it: guard and supervisor were both killed."""
    return task.end is not None and _sweep(task) is not None


def reconcile(task: Task, observed: JobState, budgets: Budgets) -> Action | None:
    """The one next thing to do for a task, or None; call again with fresh facts after it was done.

    A task without a job was to be launched by a client that died. One client at a time: two that intend the same job
    at once would each make a token.

    Args:
        observed: the backend's view of the newest job, taken before `task` was read.
    """
    number = task.newest_job
    if task.end is not None:
        return _sweep(task) if observed is JobState.GONE else None
    if not number:
        return NextJob(job=1)
    job = task.jobs[number]
    newest = task.newest_attempt
    attempt = newest.number if newest else 0
    if job.refusal and task.is_stop_wanted:
        return EndTask(
            job=number, attempt=attempt, verdict=State.STOPPED, cause=str(Cause.CANCELLED), message=task.stop_reason
        )
    if job.refusal:
        return EndTask(
            job=number, attempt=attempt, verdict=State.FAILED, cause=str(Cause.START_FAILED), message=job.refusal
        )
    if not job.is_submitted:
        return Submit(job=number)
    if observed is not JobState.GONE:
        return None
    if newest is not None and newest.job == number and newest.end is not None:
        decision = decide(task, budgets)
        if decision.verdict is None:
            return NextJob(job=number + 1)
        return EndTask(
            job=number, attempt=attempt, verdict=decision.verdict, cause=decision.cause, message=decision.message
        )
    if task.is_stop_wanted and (newest is None or newest.job != number):
        return EndTask(
            job=number, attempt=attempt, verdict=State.STOPPED, cause=str(Cause.CANCELLED), message=task.stop_reason
        )
    if newest is not None and newest.job == number:
        message = "its guard and supervisor are gone without a last word"
        return MarkLost(job=number, attempt=attempt, cause=Cause.NODE_LOST, message=message)
    message = "the job was gone before its first attempt began"
    return MarkLost(job=number, attempt=attempt + 1, cause=Cause.NODE_LOST, message=message)


def _sweep(task: Task) -> Sweep | None:
    for number in sorted(task.attempts, reverse=True):
        replicas = task.attempts[number].replicas
        ranks = tuple(sorted(rank for rank, replica in replicas.items() if replica.is_starting and not replica.end))
        if ranks:
            return Sweep(job=task.attempts[number].job, attempt=number, ranks=ranks)
    return None
