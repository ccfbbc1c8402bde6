"""Lookup of the run that a command line names, with a report of what the run needs or what could not be checked.

Read-only commands use `found_run` and `looked_at`; commands that may act on a run use `reconciled`.
"""

from __future__ import annotations

import time

from windlass.cli.screen import printable, tell
from windlass.core.errors import UnreachableError, WindlassError
from windlass.core.phrases import ago
from windlass.runs.home import Home
from windlass.runs.pending import Assessment, PendingAction
from windlass.runs.store import RunFolder, find

__all__ = ["found_run", "fresh_logs", "in_words", "looked_at", "reconciled", "say_pending"]


def found_run(ref: str, home: Home | None = None) -> RunFolder:
    """Return the run that `ref` names, after printing to standard error what it needs. Changes nothing.

    Raises:
        NotFoundError, UsageError: `ref` does not name exactly one run.
    """
    home = home or Home.default()
    run = find(home, ref)
    say_pending(run, looked_at(run, home))
    return run


def looked_at(run: RunFolder, home: Home, reported: set[str] | None = None) -> Assessment:
    """Compare a run's record with its processes and jobs, changing nothing; if that fails, print a note.

    Args:
        reported: notes on unreachable sites that were already printed, for a command that checks many runs.
    """
    facts = run.facts()
    if facts.state.is_terminal and not any(task.jobs_left for task in facts.tasks.values()):
        return Assessment()
    from windlass.launcher.reconcile.assessment import assess  # lazy: most runs have ended

    try:
        found = assess(run, home)
    except WindlassError as error:
        _tell_of_failure(run, error, reported)
        return Assessment()
    for why in dict.fromkeys(found.unseen.values()):
        if reported is None or why not in reported:
            tell(f"note: {run.id} is shown as last recorded: {printable(why)}")
        if reported is not None:
            reported.add(why)
    return found


def reconciled(run: RunFolder, home: Home, reported: set[str] | None = None) -> list[str]:
    """Reconcile a run's record with its processes and jobs; return a description of each action.

    If that fails, print a note and return nothing; `reported` as in `looked_at`.
    """
    from windlass.launcher.reconcile.reconciler import reconcile_run  # lazy: most commands are read-only

    try:
        return reconcile_run(run, home)
    except WindlassError as error:
        _tell_of_failure(run, error, reported)
        return []


def say_pending(run: RunFolder, found: Assessment) -> None:
    """Print what a run needs that a read-only command does not do, and the command that does."""
    for one in found.pending:
        tell(f"note: {run.id}: {printable(in_words(run.id, one))}")


def in_words(run_id: str, one: PendingAction) -> str:
    """Return a description of what a run needs, with the command that does it."""
    what = f"{one.task}: {one.what}" if one.task else one.what
    return f"{what}; `windlass show {run_id} --reconcile` {one.then}" if one.then else what


def fresh_logs(run: RunFolder, home: Home) -> None:
    """Download new log lines of a run at an ssh site, or print a note if the site cannot be reached."""
    if not run.is_mirrored:
        return
    from windlass.launcher.remote.refresh import MirrorRefresh  # lazy: most runs are local

    listening = MirrorRefresh(run, home)
    listening.look(is_last=True)
    if listening.trouble:
        tell(f"note: {run.id}: {printable(listening.trouble)}{_heard(run)}")


def _tell_of_failure(run: RunFolder, error: WindlassError, reported: set[str] | None) -> None:
    if not isinstance(error, UnreachableError):
        tell(f"note: {run.id}: could not refresh its state: {printable(error.message)}")
        return
    if reported is None or error.message not in reported:
        tell(f"note: {run.id} is shown as last known: {printable(error.message)}{_heard(run)}")
    if reported is not None:
        reported.add(error.message)


def _heard(run: RunFolder) -> str:
    heard = run.heard_at()
    return f"; last contact {ago(heard, time.time())}" if heard else ""
