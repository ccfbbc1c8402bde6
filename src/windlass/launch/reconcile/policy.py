"""The pure policy of any client that may act on a run: what to do about a task whose job may be gone.

Clients only reconcile; the supervisors in the job decide while they live. The observation must be made before the
facts are read: a supervisor that writes its last record and leaves in between is then seen as finished, not lost.
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
"""A job that still runs so long after its task's end does not leave by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit the intended job (again); the backend finds it by its token if it is there already."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Take a job out of its queue: a stop was asked for, and no supervisor is there to hear of it."""

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
class EndLeftovers:
    """End what a job that is gone left behind, and record the ends of these replicas' processes."""

    job: int
    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unqueue:
    """Take what waits of a job out of its queue: its task has ended."""

    job: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGone:
    """Record that nothing is left of a job whose task has ended, so that its place is not asked again."""

    job: int


Action = Submit | Cancel | MarkLost | NextJob | EndTask | EndLeftovers | Unqueue | RecordGone


def has_loose_ends(task: TaskFacts) -> bool:
    """Whether the task ended while nobody knows the end of a process of it: guard and supervisor were both killed."""
    return task.end is not None and _sweep(task) is not None


def reconcile(
    task: TaskFacts, seen: Observation, budgets: Budgets, num_links: int = 0, *, reads_requests: bool = True
) -> Action | None:
    """The one next thing to do for a task, or None; call again with fresh facts after it was done.

    A task without a job was to be launched by a client that died. One client at a time: two that intend the same job
    at once would each make a token.

    Args:
        seen: the backend's view of the newest job, taken before `task` was read.
        num_links: most links that the task may have; 0: no limit.
        reads_requests: whether a running job hears what clients write; else it is stopped by cancelling it.
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
    message = seen.detail if seen.cause else "its job is gone, it had not begun, and its place does not say why"
    return MarkLost(job=number, attempt=attempt + 1, cause=_cause(seen), message=message)


def _after_refusal(task: TaskFacts, job: JobFacts, attempt: int) -> EndTask:
    """The end of a task whose job its place would not take."""
    if task.is_stop_wanted:
        verdict, cause, message = State.STOPPED, Cause.CANCELLED, task.stop_reason
    else:
        verdict, cause, message = State.FAILED, Cause.START_FAILED, job.refusal
    return EndTask(job=job.number, attempt=attempt, verdict=verdict, cause=str(cause), message=message)


def after_end(task: TaskFacts, job: int, seen: Observation, now: float) -> Action | None:
    """What to do about a job of a task that has ended: nothing of it may stay in a queue.

    A job that runs is about to leave; only one that has not done so for `LEAVING_S` is ended.
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
    """What became of an attempt of which nobody is left to say it; a stop that was asked for ended it by force."""
    if task.is_stop_wanted:
        return MarkLost(job=job, attempt=attempt, cause=Cause.CANCELLED, message=task.stop_reason)
    message = seen.detail if seen.cause else "its job is gone, and neither its supervisors nor its place say why"
    return MarkLost(job=job, attempt=attempt, cause=_cause(seen), message=message)


def _after(task: TaskFacts, job: int, budgets: Budgets, num_links: int, seen: Observation) -> Action:
    """What follows the newest attempt, which ended, when its job is gone."""
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
    """Whether what the job took for a preemption was a person at its place, who does not want it back."""
    newest = task.newest_attempt
    was_told_to_go = newest is not None and newest.end is not None and newest.end.cause == Cause.PREEMPTED
    return was_told_to_go and cause_of(seen.cause) is Cause.CANCELLED


def _cause(seen: Observation) -> Cause:
    """Why a job ended that said nothing; that its place calls it done does not make it so."""
    cause = cause_of(seen.cause)
    return Cause.UNKNOWN if cause is Cause.OK else cause


def _sweep(task: TaskFacts) -> EndLeftovers | None:
    for number in sorted(task.attempts, reverse=True):
        replicas = task.attempts[number].replicas
        ranks = tuple(sorted(rank for rank, replica in replicas.items() if replica.is_starting and not replica.end))
        if ranks:
            return EndLeftovers(job=task.attempts[number].job, attempt=number, ranks=ranks)
    return None
