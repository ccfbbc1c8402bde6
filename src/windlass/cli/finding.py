"""From the word on the command line to a run whose record agrees with the world."""

from __future__ import annotations

import time

from windlass.cli.phrases import ago
from windlass.cli.screen import printable, tell
from windlass.core.errors import UnreachableError, WindlassError
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["found_run", "fresh_logs", "reconciled"]


def found_run(ref: str, home: Home | None = None) -> RunFolder:
    """The run that `ref` means; if it is in motion its record is brought up to date first.

    Raises:
        NotFoundError, UsageError: it is not exactly one run.
    """
    home = home or Home.default()
    run = find(home, ref)
    reconciled(run, home)
    return run


def reconciled(run: RunFolder, home: Home, told: set[str] | None = None) -> None:
    """Look after a run in motion; a reader goes on with what it has where that fails, and says so.

    Args:
        told: sites whose silence was told of already, for one who looks at many runs.
    """
    facts = run.facts()
    if facts.state.is_terminal or not facts.tasks:
        return
    from windlass.launch.keeper import keep  # lazy: most looks are at runs that ended

    try:
        keep(run, home)
    except UnreachableError as error:
        if told is None or error.message not in told:
            tell(f"note: {run.id} is shown as last known: {printable(error.message)}{_heard(run)}")
        if told is not None:
            told.add(error.message)
    except WindlassError as error:
        tell(f"note: {run.id}: its record could not be compared with the world: {printable(error.message)}")


def fresh_logs(run: RunFolder, home: Home) -> None:
    """Bring everything here that a run at a site reached over ssh printed; says so where the site does not answer."""
    if not run.is_mirrored:
        return
    from windlass.launch.listening import Listening  # lazy: most runs live here

    listening = Listening(run, home)
    listening.look(is_last=True)
    if listening.trouble:
        tell(f"note: {run.id}: {printable(listening.trouble)}{_heard(run)}")


def _heard(run: RunFolder) -> str:
    heard = run.heard_at()
    return f"; last heard {ago(heard, time.time())}" if heard else ""
