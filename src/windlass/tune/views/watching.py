"""The view of a sweep whose head is another process: it reads the journal, so it can be started and ended at will."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from windlass.core.clock import Clock, SystemClock
from windlass.tune.controller.stream import JournalStream, no_sweep
from windlass.tune.folder import SweepFolder
from windlass.tune.views.live import View
from windlass.tune.views.reporters import ViewSettings

__all__ = ["watch"]

_POLL_S = 0.25


def watch(
    folder: Path | str,
    *,
    follows: bool = True,
    verbosity: int = 1,
    settings: ViewSettings | None = None,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Show the sweep in a folder: as it is now, or until it ends. Blocks; changes nothing.

    Args:
        follows: False shows it once.

    Raises:
        NotFoundError: there is no sweep (`no-such-sweep`).
    """
    clock = clock or SystemClock()
    journal = JournalStream(SweepFolder(Path(folder)))
    view = View(verbosity=verbosity, settings=settings, stream=stream, clock=clock)
    is_known = False
    try:
        while True:
            for piece in journal.pieces():
                is_known = True
                for record in piece:
                    view.take(record.kind, record.data, record.at)
            if not is_known:
                raise no_sweep(journal.folder)
            if not follows or view.progress.ended_why:
                return
            view.tick()
            clock.sleep(_POLL_S)
    finally:
        if is_known:
            view.close()
