"""Retry policy: whether a task continues after an attempt ended, and its verdict if not.

Pure, so that the leader in the job, a client that reconciles, the simulation and the goodput simulator all use the
same function and reach the same decision.
"""

from __future__ import annotations

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause, Kind, cause_of, kind_of
from windlass.record.facts import Attempt, TaskFacts
from windlass.record.lifecycle import State

__all__ = ["DOOMED_WITHIN_S", "MAX_WITHOUT_PROGRESS", "Budgets", "Decision", "decide", "end_of_chain"]

MAX_WITHOUT_PROGRESS = 3
"""Number of consecutive attempts without progress after which a task ends."""

DOOMED_WITHIN_S = 600.0
"""For code that reports no progress at all, only an end this soon after the start counts as doomed; seconds."""


@dataclass(frozen=True)
class Budgets:
    """Maximum number of lost attempts for each kind of cause."""

    interrupted: int = 50
    failed: int = 0


@dataclass(frozen=True)
class Decision:
    """Decision after an attempt has ended; without a verdict, the next attempt starts."""

    verdict: State | None
    cause: str = ""
    message: str = ""


def decide(task: TaskFacts, budgets: Budgets) -> Decision:
    """Decide how a task continues whose newest attempt has ended."""
    newest = task.newest_attempt
    if newest is None or newest.end is None:
        raise ValueError(f"task {task.name}: the newest attempt has not ended")
    cause = cause_of(newest.end.cause)
    is_evaluation = bool(newest.evaluates.path)  # `record.evaluation` decides about each checkpoint, and about the end
    if is_evaluation and cause is not Cause.CANCELLED and not task.is_stop_wanted:
        return Decision(None)
    if cause is Cause.OK and not is_evaluation:
        return Decision(State.SUCCEEDED, str(cause))
    if task.is_stop_wanted:
        return Decision(State.STOPPED, str(Cause.CANCELLED), task.stop_reason)
    if cause is Cause.CANCELLED:  # by a user, through the scheduler and not through windlass
        return Decision(State.STOPPED, str(cause), newest.end.message)
    if kind_of(cause) is Kind.FINAL:
        return Decision(State.FAILED, str(cause), newest.end.message)
    attempts = _counted(task)
    allowed = budgets.interrupted if kind_of(cause) is Kind.INTERRUPTION else budgets.failed
    num_used = sum(1 for attempt in attempts if attempt.end and kind_of(cause_of(attempt.end.cause)) is kind_of(cause))
    if num_used > allowed:
        return Decision(State.FAILED, str(cause), newest.end.message)
    num_doomed = _num_without_progress(task, attempts)
    if num_doomed >= MAX_WITHOUT_PROGRESS:
        message = f"{num_doomed} attempts in a row made no progress; the last ended by {cause}: {newest.end.message}"
        return Decision(State.FAILED, str(Cause.NO_PROGRESS), message)
    return Decision(None)


def end_of_chain(task: TaskFacts, link: int, num_links: int) -> Decision | None:
    """Return the end of a task that needs another link but may not have one; None if it may.

    Args:
        link: number of the newest link that began, over all jobs of the task since its budgets were reset.
        num_links: maximum number of links; 0 if there is no limit.
    """
    if not num_links or link < num_links:
        return None
    newest = task.newest_attempt
    cause = newest.end.cause if newest is not None and newest.end is not None else str(Cause.UNKNOWN)
    return Decision(State.FAILED, cause, f"all {num_links} jobs of its chain are used up")


def _counted(task: TaskFacts) -> list[Attempt]:
    """Return the attempts since the budgets were last reset, in order; of evaluations only those that never began one."""
    reset = max((job.number for job in task.jobs.values() if job.resets_budgets), default=0)
    attempts = [task.attempts[number] for number in sorted(task.attempts) if task.attempts[number].job >= reset]
    last = max((attempt.number for attempt in attempts if attempt.evaluates.path), default=0)
    return [attempt for attempt in attempts if attempt.number > last]


def _num_without_progress(task: TaskFacts, attempts: list[Attempt]) -> int:
    count = 0
    for attempt in reversed(attempts):
        if attempt.end is None or attempt.has_progress:
            break
        is_quick = attempt.ended_at - attempt.first_seen_at < DOOMED_WITHIN_S
        if not task.has_reported and not is_quick:
            break
        count += 1
    return count
