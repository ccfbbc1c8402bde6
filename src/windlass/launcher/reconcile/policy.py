"""Pure policy that decides a task's next action from its facts and the state of its job.

While supervisors run, they decide. The job must be observed before the facts are read: if a supervisor writes its last
record in between, its job then counts as finished, not lost.
"""

from __future__ import annotations

from windlass.backends import JobState, Observation
from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause, cause_of
from windlass.record.retry import Budgets, Decision, decide, end_of_chain
from windlass.record.state import JobFacts, State, TaskFacts

__all__ = [
    "Action",
    "Cancel",
    "EndLeftovers",
    "EndTask",
    "MarkLost",
    "NextJob",
    "RecordGone",
    "Submit",
    "Unqueue",
    "after_end",
    "has_loose_ends",
    "reconcile",
]

LEAVING_S = 120.0
"""Seconds after its task's end at which a job that still runs is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Action: submit a recorded job; the backend finds it by its token if it was already submitted."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Action: cancel a job because no supervisor is running to read a stop request."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLost:
    """Action: record that a job disappeared without a final record, and end its attempt."""

    job: int
    attempt: int
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """Action: record and submit the task's next job."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTask:
    """Action: record the task's end, because no supervisor is left to do so."""

    job: int
    attempt: int
    verdict: State
    cause: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLeftovers:
    """Action: kill the processes that a lost job left behind, and record their end."""

    job: int
    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unqueue:
    """Action: cancel the queued parts of a job whose task has ended."""

    job: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGone:
    """Action: record that a job of an ended task is gone, so that it is not observed again."""

    job: int


Action = Submit | Cancel | MarkLost | NextJob | EndTask | EndLeftovers | Unqueue | RecordGone


def has_loose_ends(task: TaskFacts) -> bool:
    """Return whether a task has ended but one of its processes has not, as after its supervisor was killed."""
    return task.end is not None and _sweep(task) is not None


def reconcile(
    task: TaskFacts, seen: Observation, budgets: Budgets, num_links: int = 0, *, reads_requests: bool = True
) -> Action | None:
    """Return the next action for a task, or None. Call this again with new facts after carrying it out.

    A task without a job was left by a client that died. Only one client may call this at a time: two clients that
    record the same job would create two tokens.

    Args:
        seen: the backend's observation of the newest job, made before `task` was read.
        num_links: maximum number of links of the task; 0 for no limit.
        reads_requests: whether running jobs read clients' requests; if not, they are stopped by cancelling them.
    """
    observed = seen.state
    number = task.newest_job
    if task.end is not None:
        return _sweep(task) if observed is JobState.GONE else None
    if not number:
        return NextJob(job=1)
    job = task.jobs[number]
    newest = task.newest_attempt
    attempt = newest.number if newest else 0
    if job.refusal:
        return _after_refusal(task, job, attempt)
    if not job.is_submitted:
        return Submit(job=number)
    if task.is_stop_wanted and (observed is JobState.QUEUED or (observed is JobState.RUNNING and not reads_requests)):
        return Cancel(job=number)
    if observed is not JobState.GONE:
        return None
    if newest is not None and newest.job == number and newest.end is not None:
        if seen.signs and newest.is_end_doubtful:
            return None
        return _after(task, number, budgets, num_links, seen)
    if task.is_stop_wanted and (newest is None or newest.job != number):
        return EndTask(
            job=number, attempt=attempt, verdict=State.STOPPED, cause=str(Cause.CANCELLED), message=task.stop_reason
        )
    if seen.signs:
        return None
    if newest is not None and newest.job == number:
        return _lost(task, number, attempt, seen)
    message = seen.detail if seen.cause else "its job is gone before it started; no reason is known"
    return MarkLost(job=number, attempt=attempt + 1, cause=_cause(seen), message=message)


def _after_refusal(task: TaskFacts, job: JobFacts, attempt: int) -> EndTask:
    """Return the action that ends a task whose job was refused."""
    if task.is_stop_wanted:
        verdict, cause, message = State.STOPPED, Cause.CANCELLED, task.stop_reason
    else:
        verdict, cause, message = State.FAILED, Cause.START_FAILED, job.refusal
    return EndTask(job=job.number, attempt=attempt, verdict=verdict, cause=str(cause), message=message)


def after_end(task: TaskFacts, job: int, seen: Observation, now: float) -> Action | None:
    """Return the action for a job whose task has ended, which must not stay in a queue; None if none is needed.

    A running job normally exits by itself; it is cancelled only after `LEAVING_S`.
    """
    if seen.state is JobState.GONE:
        return None if seen.signs else RecordGone(job=job)
    if seen.waiting:
        return Unqueue(job=job, ids=seen.waiting)
    is_late = task.end is not None and now - task.end[3] > LEAVING_S
    if seen.state is JobState.QUEUED or (seen.state is JobState.RUNNING and is_late):
        return Cancel(job=job)
    return None


def _lost(task: TaskFacts, job: int, attempt: int, seen: Observation) -> MarkLost:
    """Return the action that ends an attempt without a final record; after a stop request it counts as cancelled."""
    if task.is_stop_wanted:
        return MarkLost(job=job, attempt=attempt, cause=Cause.CANCELLED, message=task.stop_reason)
    message = seen.detail if seen.cause else "its job is gone; no reason is known"
    return MarkLost(job=job, attempt=attempt, cause=_cause(seen), message=message)


def _after(task: TaskFacts, job: int, budgets: Budgets, num_links: int, seen: Observation) -> Action:
    """Return the next action after the newest attempt has ended and its job is gone."""
    decision = decide(task, budgets)
    if decision.verdict is None and _was_cancelled_there(task, seen):
        decision = Decision(State.STOPPED, str(Cause.CANCELLED), seen.detail)
    if decision.verdict is None:
        decision = end_of_chain(task, task.num_links_begun(job + 1), num_links) or decision
    if decision.verdict is None:
        return NextJob(job=job + 1)
    newest = task.newest_attempt
    return EndTask(
        job=job,
        attempt=newest.number if newest else 0,
        verdict=decision.verdict,
        cause=decision.cause,
        message=decision.message,
    )


def _was_cancelled_there(task: TaskFacts, seen: Observation) -> bool:
    """Return whether a user cancelled the job at its site, where the job itself recorded a preemption."""
    newest = task.newest_attempt
    was_preempted = newest is not None and newest.end is not None and newest.end.cause == Cause.PREEMPTED
    return was_preempted and cause_of(seen.cause) is Cause.CANCELLED


def _cause(seen: Observation) -> Cause:
    """Return why a job without a final record ended; the scheduler's `ok` is ignored."""
    cause = cause_of(seen.cause)
    return Cause.UNKNOWN if cause is Cause.OK else cause


def _sweep(task: TaskFacts) -> EndLeftovers | None:
    for number in sorted(task.attempts, reverse=True):
        replicas = task.attempts[number].replicas
        ranks = tuple(sorted(rank for rank, replica in replicas.items() if replica.is_starting and not replica.end))
        if ranks:
            return EndLeftovers(job=task.attempts[number].job, attempt=number, ranks=ranks)
    return None
