"""View of a sweep whose head runs in another process.

It reads the journal, and can be stopped at any time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from windlass.core.clock import Clock, SystemClock
from windlass.core.files import is_locked
from windlass.core.json_text import read_json
from windlass.tune.controller.journal.stream import JournalStream, no_sweep
from windlass.tune.folder import SweepFolder
from windlass.tune.views.live import LiveView
from windlass.tune.views.reporters import ViewSettings

__all__ = ["watch"]

_POLL_S = 0.25
_GONE_S = 10.0
"""Maximum time that a head takes to start."""


def watch(
    folder: Path | str,
    *,
    follows: bool = True,
    verbosity: int = 1,
    settings: ViewSettings | None = None,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Show the sweep in a folder once, or until it ends or has had no head for a while. Read-only.

    Args:
        follows: False shows it once.

    Raises:
        NotFoundError: the folder holds no sweep (`sweep-not-found`).
    """
    clock = clock or SystemClock()
    journal = JournalStream(SweepFolder(Path(folder)))
    view = LiveView(verbosity=verbosity, settings=settings, stream=stream, clock=clock)
    is_known, heard_at = False, clock.monotonic()
    try:
        while True:
            for piece in journal.pieces():
                is_known, heard_at = True, clock.monotonic()
                for record in piece:
                    view.take(record.kind, record.data, record.at)
            if not is_known and not (follows and journal.folder.path.is_dir()):
                raise no_sweep(journal.folder)
            view.progress.head_waits = _head_waits(journal.folder)
            if not follows or view.progress.ended_why:
                return
            if clock.monotonic() - heard_at > _GONE_S:
                if not _has_head(journal.folder):
                    return
                heard_at = clock.monotonic()
            if is_known:
                view.tick()
            clock.sleep(_POLL_S)
    finally:
        if is_known:
            view.close()


def _head_waits(folder: SweepFolder) -> str:
    """Return why the head starts no trials, according to `head.json`; empty if there is no head."""
    try:
        told = read_json(folder.head_note)
        waits = told.get("waits") if isinstance(told, dict) else None
    except (OSError, ValueError):  # no head yet, or its note is just being written
        return ""
    return str(waits) if waits and _has_head(folder) else ""


def _has_head(folder: SweepFolder) -> bool:
    try:
        return is_locked(folder.head_journal)
    except OSError:  # the process of another user: assume that it runs
        return True
