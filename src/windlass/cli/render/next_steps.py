"""Commands to suggest after the end of a run, depending on its cause."""

from __future__ import annotations

from windlass.record.causes import Cause
from windlass.record.state import RunFacts, State

__all__ = ["next_step"]

_MEND = "fix the code, commit, and launch again"
_STARTED_ANEW = {
    Cause.OUT_OF_MEMORY: "tasks.{task}.memory=...",
    Cause.TIMEOUT: "limit.time=...",
}
"""Overrides that fix the cause; they need a new run, since a plan is frozen."""


def next_step(run_id: str, facts: RunFacts, failed_task: str = "") -> str:
    """Return the line for the label `next`, or an empty string if there is nothing to do.

    Args:
        failed_task: the task whose failure ended the run.
    """
    if facts.state is State.STOPPED:
        return f"windlass resume {run_id}"
    if facts.state is State.RUNNING:
        return f"windlass logs {run_id} --follow | windlass stop {run_id}"
    if facts.state is State.QUEUED:
        return f"windlass stop {run_id}"
    return _after_failure(run_id, facts.cause, failed_task) if facts.state is State.FAILED else ""


def _after_failure(run_id: str, cause: str, task: str) -> str:
    for ended, override in _STARTED_ANEW.items():
        if cause == ended:
            return f"`windlass rerun {run_id} {override.format(task=task or 'TASK')}`"
    if cause == Cause.USER_ERROR:
        return f"{_MEND}; or, with the same code, `windlass retry {run_id}`"
    return f"windlass logs {run_id} | windlass retry {run_id} | windlass rerun {run_id}"
