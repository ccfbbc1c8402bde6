"""Stopping, killing, retrying and resuming a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from windlass.core.errors import AccessError, PreconditionError
from windlass.launcher.client import PROVENANCE, Client
from windlass.launcher.reconcile.assessment import was_staged
from windlass.launcher.reconcile.reconciler import reconcile_run, reconcile_through
from windlass.launcher.remote.mirror import mirror_of_run
from windlass.launcher.submit import intend, submission_of, submit_all
from windlass.record import events
from windlass.record.state import RunFacts, State
from windlass.runs.archive.origin import is_imported
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.ports import ClientPorts

__all__ = ["kill", "request_stop", "resume", "retry", "start_again", "stop"]


def stop(
    run: RunFolder, home: Home, *, reason: str = "stopped by the user", is_checkpoint_wanted: bool = False
) -> list[str]:
    """Ask a run to stop, and return its running tasks. The supervisors react within a second.

    Args:
        is_checkpoint_wanted: give code that checks `report.should_stop` up to ten minutes to save first.
    """
    _check_owner(run)
    _pull_mirror(run, home)
    return request_stop(Client(run, home), reason=reason, is_checkpoint_wanted=is_checkpoint_wanted)


def request_stop(ports: ClientPorts, *, reason: str, is_checkpoint_wanted: bool) -> list[str]:
    """Like `stop`, but through the interfaces in `ports`."""
    facts = ports.files.facts()
    tasks = {name: task.newest_job for name, task in facts.tasks.items() if not task.end and task.newest_job}
    if tasks:
        with ports.files.open_journal() as journal:
            journal.append(events.STOP_REQUESTED, tasks=tasks, reason=reason, is_checkpoint_wanted=is_checkpoint_wanted)
        reconcile_through(ports)
    return list(tasks)


def kill(run: RunFolder, home: Home) -> None:
    """Kill all of a run's processes and record its end. Blocking.

    The processes are killed even if the end cannot be recorded, such as on a full disk.
    """
    _check_owner(run)
    try:
        stop(run, home, reason="killed by the user")
    finally:
        _cancel_all(Client(run, home))
    reconcile_run(run, home)


def _pull_mirror(run: RunFolder, home: Home) -> None:
    """Pull new records of a run from its site, if the site can be reached."""
    mirror = mirror_of_run(run, home)
    if mirror is not None:
        mirror.pull()


def _cancel_all(ports: ClientPorts) -> None:
    backend = ports.backend()
    for name, task in ports.files.facts().tasks.items():
        submission = submission_of(ports.files, name, task.newest_job) if not task.end else None
        if submission is not None:
            backend.cancel(submission)


def _check_owner(run: RunFolder) -> None:
    """Raise if the run belongs to another user, even for root: its owner could not continue it."""
    owner = run.path.stat().st_uid
    if owner != os.geteuid():
        raise AccessError(
            f"run {run.id} belongs to user {owner}, not to you",
            hint="run the command as that user: sudo -u '#UID' windlass ...".replace("UID", str(owner)),
            code="not-allowed",
        )


def retry(run: RunFolder, home: Home) -> list[str]:
    """Restart failed and stopped tasks from the last committed checkpoint, with new retry budgets."""
    return _again(run, home, resets_budgets=True)


def resume(run: RunFolder, home: Home) -> list[str]:
    """Continue a stopped run from the last committed checkpoint; retry budgets are not reset."""
    return _again(run, home, resets_budgets=False)


def _again(run: RunFolder, home: Home, *, resets_budgets: bool) -> list[str]:
    _check_owner(run)
    if is_imported(run):
        message, hint = (
            f"run {run.id} was imported from an archive and cannot continue here",
            f"windlass rerun {run.id}",
        )
        raise PreconditionError(message, hint=hint, code="run-imported")
    _pull_mirror(run, home)
    return start_again(Client(run, home), resets_budgets=resets_budgets)


def start_again(ports: ClientPorts, *, resets_budgets: bool) -> list[str]:
    """Like `retry`, or like `resume` if `resets_budgets` is false, but through the interfaces in `ports`."""
    files = ports.files
    reconcile_through(ports)
    with files.lock():
        wanted = _tasks_to_start(files.facts(), files.id, resets_budgets=resets_budgets)
        if not files.is_staged():
            was_interrupted = not was_staged(ports, files.facts())
            why = (
                "its launch was interrupted before its files were staged"
                if was_interrupted
                else f"{PROVENANCE} is missing"
            )
            raise PreconditionError(
                f"run {files.id} cannot continue: {why}",
                hint="launch it again: windlass launch FILE",
                code="run-damaged",
            )
        ports.deliver_secrets()
        with files.open_journal() as journal:
            intend(ports, wanted, journal, resets_budgets=resets_budgets)
            refusal = submit_all(ports, wanted, journal)
    if ports.site is not None:
        ports.site.push()
    if refusal is not None:
        reconcile_through(ports)
        raise refusal
    return list(wanted)


def _tasks_to_start(facts: RunFacts, run_id: str, *, resets_budgets: bool) -> dict[str, int]:
    """Return the number of the next job for each task that `retry` or `resume` starts again."""
    if not facts.state.is_terminal:
        raise PreconditionError(
            f"run {run_id} is {facts.state} and has not ended",
            hint=f"stop it (windlass stop {run_id}), or follow it: windlass logs {run_id} --follow",
            code="run-active",
        )
    states = (State.FAILED, State.STOPPED) if resets_budgets else (State.STOPPED,)
    wanted = {name: task.newest_job + 1 for name, task in facts.tasks.items() if task.state in states}
    if not wanted:
        verb = "retry" if resets_budgets else "resume"
        raise PreconditionError(
            f"run {run_id} has nothing to {verb}: it {facts.state}",
            hint=f"start it again as a new run: windlass rerun {run_id}"
            if facts.state is State.SUCCEEDED
            else f"windlass retry {run_id}",
            code="nothing-to-do",
        )
    return wanted
