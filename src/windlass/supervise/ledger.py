"""The journal as the cores see it: the facts so far, and a pen that is on disk when it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from windlass.core.clock import Clock
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.journal import JournalReader, JournalWriter
from windlass.record.state import RunFacts, Task

__all__ = ["JournalLedger"]


class JournalLedger:
    """One replica's ledger over the run's journal folder.

    It reads what this replica and its user code write, metrics included; a leader reads all of the run beside that,
    metrics left out, since they are many and decide nothing.

    Args:
        on_record: sees each record of this replica that arrives from now on; `history` has those from before.
    """

    def __init__(
        self, folder: Path, task: str, writer: str, clock: Clock, *, on_record: Callable[[Record], None]
    ) -> None:
        self._task = task
        self._writer = JournalWriter(folder, writer, clock, has_reserve=True)
        self._folder = folder
        self._own = JournalReader(folder, prefix=f"{writer}.")
        self._all: JournalReader | None = None
        self._on_record = on_record
        self.facts = RunFacts()
        self.history = self._own.poll()
        for record in self.history:
            self.facts.apply(record)

    def poll(self) -> None:
        """Take in what was appended by anybody since the last call."""
        own = self._own.poll()
        for record in own:
            self._on_record(record)
        for record in own if self._all is None else self._all.poll():
            self.facts.apply(record)

    def widen(self) -> None:
        """From now on know the whole run: this replica leads, or has lost its leader. Idempotent."""
        if self._all is None:
            self._all = JournalReader(self._folder, skip=(events.METRICS,))
            self.facts = RunFacts()
            self.poll()

    def task(self) -> Task:
        """The facts of this task, fresh from the files."""
        self.poll()
        return self.facts.task(self._task)

    def append(self, kind: str, **data: Any) -> Record:
        """Record a fact durably."""
        return self._writer.append(kind, task=self._task, **data)

    def close(self) -> None:
        """Close the pen."""
        self._writer.close()
