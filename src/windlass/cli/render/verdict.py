"""Verdict on a run: result, cause, duration, outputs and next command."""

from __future__ import annotations

import sys
from collections.abc import Collection

from windlass.cli.render.progress import describe_end
from windlass.cli.screen import paint, printable, tell
from windlass.core.phrases import count, duration, number
from windlass.record.causes import Cause
from windlass.record.state import Attempt, RunFacts, State
from windlass.runs import metrics
from windlass.runs.store import RunFolder

__all__ = ["STATE_STYLES", "first_failure", "next_step", "show_verdict"]

STATE_STYLES = {
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.STOPPED: "yellow",
    State.STOPPING: "yellow",
    State.RUNNING: "cyan",
}
_MAX_METRICS = 6


def show_verdict(run: RunFolder, facts: RunFacts, reported: Collection[tuple[str, int]] = ()) -> None:
    """Print the verdict to standard error.

    Failures of attempts that `reported` contains, as (task, number), are left out.
    """
    state = facts.state
    word = paint(str(state), "bold", STATE_STYLES.get(state, "cyan"), stream=sys.stderr)
    because = f" ({facts.cause})" if facts.cause not in ("", "ok") else ""
    spent = duration(facts.ended_at - facts.created_at)
    tell(f"{run.id} {word}{because} after {spent}, {count(facts.num_attempts, 'attempt')}")
    if facts.why:
        tell(f"  why      {printable(facts.why)}")
    found = first_failure(facts)
    if found is None or (found[0], found[1].number) not in reported:
        _show_failure(facts)
    last = metrics.last(run)
    if last:
        shown = [f"{name} {number(point.value)}" for name, point in last.items()][:_MAX_METRICS]
        tell(f"  metrics  {', '.join(shown)}" + (", ..." if len(last) > _MAX_METRICS else ""))
    for task in facts.tasks:
        # By the folder's contents: the manifest may not be written yet.
        if next(run.out(task).glob("*"), None) is not None:
            tell(f"  outputs  {run.out(task)}")
    step = next_step(run.id, facts, found[0] if found is not None else "")
    if step:
        tell(f"  next     {step}")
    if state is State.FAILED:
        _refer_to_explanation(facts)


def _refer_to_explanation(facts: RunFacts) -> None:
    from windlass.cli.error_table import codes  # lazy: most runs succeed

    if facts.cause in codes():
        tell(f"  more     windlass explain {facts.cause}")


def _show_failure(facts: RunFacts) -> None:
    found = first_failure(facts)
    if facts.state is not State.FAILED or found is None:
        return
    task, attempt = found
    assert attempt.end is not None  # guaranteed by first_failure
    tell(f"  failure  {task} attempt {attempt.number}: {printable(describe_end(attempt.end))}")
    for line in attempt.end.traceback.rstrip("\n").split("\n")[-4:] if attempt.end.traceback else ():
        tell(f"           {printable(line)}")


def first_failure(facts: RunFacts) -> tuple[str, Attempt] | None:
    """Return the task and the attempt whose failure ended the run.

    It is the earliest failure that no other failure caused.
    """
    failed = [
        (task.end[3], name)
        for name, task in facts.tasks.items()
        if task.end is not None and task.end[0] is State.FAILED and task.end[1] != Cause.SIBLING_FAILED
    ]
    for _, name in sorted(failed):
        newest = facts.tasks[name].newest_attempt
        if newest is not None and newest.end is not None:
            return name, newest
    return None


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
