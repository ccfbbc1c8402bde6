"""Journal file of a client process, created with its first record."""

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
    """Yield this process's writer to the journal of a run."""
    found = identify(os.getpid())
    ticks = found.start_ticks if found else 0
    host = os.uname().nodename.partition(".")[0]
    writer = JournalWriter(journal, f"client-{host}-{os.getpid()}-{ticks}", clock or SystemClock())
    try:
        yield writer
    finally:
        writer.close()
