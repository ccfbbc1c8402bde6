"""A client's pen in a run's journal: one file per process that writes, made when it first has something to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.core.clock import Clock, SystemClock
from windlass.core.process import identify
from windlass.record.journal import JournalWriter

__all__ = ["client_journal"]


@contextmanager
def client_journal(journal: Path, clock: Clock | None = None) -> Iterator[JournalWriter]:
    """Write as this process into the journal folder of a run."""
    found = identify(os.getpid())
    ticks = found.start_ticks if found else 0
    host = os.uname().nodename.partition(".")[0]
    writer = JournalWriter(journal, f"client-{host}-{os.getpid()}-{ticks}", clock or SystemClock())
    try:
        yield writer
    finally:
        writer.close()
