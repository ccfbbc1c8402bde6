"""Stop, kill, retry and resume a run."""

from __future__ import annotations

import os
from collections.abc import Callable

from windlass.core.errors import AccessError, PreconditionError
from windlass.core.files import lock
from windlass.launcher.journal import client_journal
from windlass.launcher.reconcile.reconciler import reconcile_run
from windlass.launcher.remote.mirror import mirror_of_run
from windlass.launcher.submit import backend_of, deliver_secrets, intend, is_staged, submission_of, submit_all
from windlass.plan.plan import Plan
from windlass.record import events
from windlass.record.state import State, TaskFacts
from windlass.runs.archive.origin import is_imported
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["kill", "resume", "retry", "stop"]


def stop(
    run: RunFolder, home: Home, *, reason: str = "stopped by the user", is_checkpoint_wanted: bool = False
) -> list[str]:
    """Ask a run to stop, and return its running tasks. Supervisors react within a second.

    Args:
        is_checkpoint_wanted: give code that checks `report.should_stop` up to ten minutes to save first.
    """
    _check_owner(run)
    _pull_mirror(run, home)
    facts = run.facts()
    tasks = {name: task.newest_job for name, task in facts.tasks.items() if not task.end and task.newest_job}
    if tasks:
        with client_journal(run.journal) as journal:
            journal.append(events.STOP_REQUESTED, tasks=tasks, reason=reason, is_checkpoint_wanted=is_checkpoint_wanted)
        reconcile_run(run, home)
    return list(tasks)


def kill(run: RunFolder, home: Home) -> None:
    """Kill all processes of a run and record its end. Blocking.

    The processes are killed even if the end cannot be recorded, such as on a full disk.
    """
    _check_owner(run)
    try:
        stop(run, home, reason="killed by the user")
    finally:
        _cancel_all(run)
    reconcile_run(run, home)


def _pull_mirror(run: RunFolder, home: Home) -> None:
    """Pull new records of a run at a site, if the site can be reached."""
    mirror = mirror_of_run(run, home)
    if mirror is not None:
        mirror.pull()


def _cancel_all(run: RunFolder) -> None:
    plan = Plan.from_data(run.plan())
    backend = backend_of(plan)
    for name, task in run.facts().tasks.items():
        submission = submission_of(run, name, task.newest_job) if not task.end else None
        if submission is not None:
            backend.cancel(submission)


def _check_owner(run: RunFolder) -> None:
    """Refuse to write to another user's run, even as root: its owner could not continue it."""
    owner = run.path.stat().st_uid
    if owner != os.geteuid():
        raise AccessError(
            f"run {run.id} belongs to user {owner}, not to you",
            hint="run the command as that user: sudo -u '#UID' windlass ...".replace("UID", str(owner)),
            code="not-allowed",
        )


def retry(run: RunFolder, home: Home) -> list[str]:
    """Restart failed and stopped tasks from the last committed checkpoint, with new retry budgets."""
    return _again(run, home, lambda task: task.state in (State.FAILED, State.STOPPED), resets_budgets=True)


def resume(run: RunFolder, home: Home) -> list[str]:
    """Continue a stopped run from the last committed checkpoint; retry budgets are not reset."""
    return _again(run, home, lambda task: task.state is State.STOPPED, resets_budgets=False)


def _again(run: RunFolder, home: Home, is_wanted: Callable[[TaskFacts], bool], *, resets_budgets: bool) -> list[str]:
    _check_owner(run)
    if is_imported(run):
        message, hint = (
            f"run {run.id} was imported from an archive and cannot continue here",
            f"windlass rerun {run.id}",
        )
        raise PreconditionError(message, hint=hint, code="run-imported")
    _pull_mirror(run, home)
    reconcile_run(run, home)
    plan = Plan.from_data(run.plan())
    with lock(run.path / "reconcile.lock"):
        facts = run.facts()
        if not facts.state.is_terminal:
            raise PreconditionError(
                f"run {run.id} is {facts.state} and has not ended",
                hint=f"stop it (windlass stop {run.id}), or follow it: windlass logs {run.id} --follow",
                code="run-active",
            )
        wanted = {name: task.newest_job + 1 for name, task in facts.tasks.items() if is_wanted(task)}
        if not wanted:
            verb = "retry" if resets_budgets else "resume"
            raise PreconditionError(
                f"run {run.id} has nothing to {verb}: it {facts.state}",
                hint=f"start it again as a new run: windlass rerun {run.id}"
                if facts.state is State.SUCCEEDED
                else f"windlass retry {run.id}",
                code="nothing-to-do",
            )
        if not is_staged(run):
            raise PreconditionError(
                f"run {run.id} cannot continue: its launch was interrupted before its files were staged",
                hint="launch it again: windlass launch FILE",
                code="run-damaged",
            )
        deliver_secrets(run, plan, home)
        with client_journal(run.journal) as journal:
            intend(run, plan, wanted, journal, resets_budgets=resets_budgets)
            refusal = submit_all(run, plan, home, wanted, journal)
    mirror = mirror_of_run(run, home)
    if mirror is not None:
        mirror.push()
    if refusal is not None:
        reconcile_run(run, home)
        raise refusal
    return list(wanted)
