"""Reasons that the backend reports for waiting jobs."""

from __future__ import annotations

from windlass.core.errors import UnreachableError
from windlass.launcher.client import backend_of
from windlass.launcher.reconcile.assessment import LOOK_S
from windlass.launcher.submit import submission_of
from windlass.plan.plan import Plan
from windlass.record.state import RunFacts
from windlass.runs.store import RunFolder

__all__ = ["why_waiting"]


def why_waiting(run: RunFolder, facts: RunFacts) -> dict[str, str]:
    """Return why a task's job or next link has not started, by task."""
    backend = backend_of(Plan.from_data(run.plan()), patience_s=LOOK_S)
    found: dict[str, str] = {}
    for name, task in facts.tasks.items():
        submission = submission_of(run, name, task.newest_job) if task.is_between else None
        if submission is None:
            continue
        try:
            reason = backend.explain(submission)
        except UnreachableError as error:
            reason = f"unknown: {error.message}"
        if reason:
            found[name] = reason
    return found
