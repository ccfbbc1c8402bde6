"""From the word on the command line to a run whose record agrees with the world."""

from __future__ import annotations

from windlass.cli.screen import printable, tell
from windlass.core.errors import WindlassError
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["found_run", "reconciled"]


def found_run(ref: str, home: Home | None = None) -> RunFolder:
    """The run that `ref` means; if it is in motion its record is brought up to date first.

    Raises:
        NotFoundError, UsageError: it is not exactly one run.
    """
    home = home or Home.default()
    run = find(home, ref)
    reconciled(run, home)
    return run


def reconciled(run: RunFolder, home: Home) -> None:
    """Look after a run in motion; a reader goes on with what it has where that fails, and says so."""
    facts = run.facts()
    if facts.state.is_terminal or not facts.tasks:
        return
    from windlass.launch.keeper import keep  # lazy: most looks are at runs that ended

    try:
        keep(run, home)
    except WindlassError as error:
        tell(f"note: {run.id}: its record could not be compared with the world: {printable(error.message)}")
