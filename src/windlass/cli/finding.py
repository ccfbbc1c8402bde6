"""From the word on the command line to a run, and what must be said of it: what it needs, and what could not be seen.

Commands that look use `found_run` and `looked_at`, which change nothing; those that may act on a run use `reconciled`.
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
    """The run that `ref` means; says on standard error what it needs. Changes nothing.

    Raises:
        NotFoundError, UsageError: it is not exactly one run.
    """
    home = home or Home.default()
    run = find(home, ref)
    say_pending(run, looked_at(run, home))
    return run


def looked_at(run: RunFolder, home: Home, told: set[str] | None = None) -> Assessment:
    """Compare a run's record with the world and change nothing; says so where that fails.

    Args:
        told: sites whose silence was told of already, for one who looks at many runs.
    """
    facts = run.facts()
    if facts.state.is_terminal and not any(task.jobs_left for task in facts.tasks.values()):
        return Assessment()
    from windlass.launch.reconcile.assessment import assess  # lazy: most looks are at runs that ended

    try:
        found = assess(run, home)
    except WindlassError as error:
        _tell_of_failure(run, error, told)
        return Assessment()
    for why in dict.fromkeys(found.unseen.values()):
        if told is None or why not in told:
            tell(f"note: {run.id} is shown as last recorded: {printable(why)}")
        if told is not None:
            told.add(why)
    return found


def reconciled(run: RunFolder, home: Home, told: set[str] | None = None) -> list[str]:
    """Bring a run's record in line with the world, as a command may that acts on it; returns what was done, in words.

    A command goes on with what it has where that fails, and says so; `told` as in `looked_at`.
    """
    from windlass.launch.reconcile.reconciler import reconcile_run  # lazy: most commands only look

    try:
        return reconcile_run(run, home)
    except WindlassError as error:
        _tell_of_failure(run, error, told)
        return []


def say_pending(run: RunFolder, found: Assessment) -> None:
    """Tell what a run needs that a command which looks does not do, and what to type."""
    for one in found.pending:
        tell(f"note: {run.id}: {printable(in_words(run.id, one))}")


def in_words(run_id: str, one: PendingAction) -> str:
    """What a run needs, with the command that does it."""
    what = f"{one.task}: {one.what}" if one.task else one.what
    return f"{what}; `windlass show {run_id} --reconcile` {one.then}" if one.then else what


def fresh_logs(run: RunFolder, home: Home) -> None:
    """Bring everything here that a run at a site reached over ssh printed; says so where the site does not answer."""
    if not run.is_mirrored:
        return
    from windlass.launch.remote.refresh import MirrorRefresh  # lazy: most runs live here

    listening = MirrorRefresh(run, home)
    listening.look(is_last=True)
    if listening.trouble:
        tell(f"note: {run.id}: {printable(listening.trouble)}{_heard(run)}")


def _tell_of_failure(run: RunFolder, error: WindlassError, told: set[str] | None) -> None:
    if not isinstance(error, UnreachableError):
        tell(f"note: {run.id}: its record could not be compared with the world: {printable(error.message)}")
        return
    if told is None or error.message not in told:
        tell(f"note: {run.id} is shown as last known: {printable(error.message)}{_heard(run)}")
    if told is not None:
        told.add(error.message)


def _heard(run: RunFolder) -> str:
    heard = run.heard_at()
    return f"; last heard {ago(heard, time.time())}" if heard else ""
