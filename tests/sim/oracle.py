"""Budgets and progress, judged in the plainest way, to hold the shipped retry policy against."""

from __future__ import annotations

from windlass.record.causes import Cause, Kind, kind_of
from windlass.record.retry import DOOMED_WITHIN_S, MAX_WITHOUT_PROGRESS, Budgets
from windlass.record.state import Attempt, TaskFacts

__all__ = ["refusal_to_go_on"]


def refusal_to_go_on(task: TaskFacts, number: int, budgets: Budgets, *, has_true_time: bool) -> str:
    """Why attempt `number` of a task must not start; empty when it may."""
    reset = max((job.number for job in task.jobs.values() if job.resets_budgets), default=0)
    earlier = [task.attempts[n] for n in sorted(task.attempts) if n < number]
    if any(attempt.end is not None and attempt.end.cause == Cause.OK for attempt in earlier):
        return "an earlier attempt succeeded"
    counted = [attempt for attempt in earlier if attempt.job >= reset]
    if not counted:
        return ""
    if counted[-1].end is None:
        return f"attempt {counted[-1].number} has not ended"
    if counted[-1].job in task.ends:
        return ""  # the task had ended and a person asked for more
    last = kind_of(Cause(counted[-1].end.cause))
    if last is Kind.FINAL:
        return f"attempt {counted[-1].number} ended for good by {counted[-1].end.cause}"
    for kind, allowed in ((Kind.INTERRUPTION, budgets.interrupted), (Kind.FAILURE, budgets.failed)):
        used = sum(1 for attempt in counted if attempt.end is not None and kind_of(Cause(attempt.end.cause)) is kind)
        if kind is last and used > allowed:
            return f"{used} attempts ended by {kind.value} and {allowed} are allowed"
    return _doomed(task, counted, has_true_time=has_true_time)


def _doomed(task: TaskFacts, counted: list[Attempt], *, has_true_time: bool) -> str:
    last = counted[-MAX_WITHOUT_PROGRESS:]
    is_quick = has_true_time and all(attempt.ended_at - attempt.first_seen_at < DOOMED_WITHIN_S for attempt in last)
    is_doomed = len(last) == MAX_WITHOUT_PROGRESS and not any(attempt.has_progress for attempt in last)
    if is_doomed and (task.has_reported or is_quick):
        return f"the last {MAX_WITHOUT_PROGRESS} attempts made no progress"
    return ""
