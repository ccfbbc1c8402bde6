"""The journal as the cores see it: the facts so far, and a pen that is on disk when it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List

from windlass.core.clock import Clock
from windlass.record.frames import Record
from windlass.record.journal import JournalReader, JournalWriter
from windlass.record.state import RunFacts, Task

__all__ = ["JournalLedger"]


class JournalLedger:
    """One replica's ledger over the run's journal folder.

    Args:
        prefix: read only writers whose name begins so; a leader reads all of the run.
        on_record: sees each record that arrives from now on once, in the order read; `history` has those from before.
    """

    def __init__(
        self, folder: Path, task: str, writer: str, clock: Clock, *, prefix: str = "", on_record: Callable[[Record], None]
    ) -> None:
        self._task = task
        self._writer = JournalWriter(folder, writer, clock, has_reserve=True)
        self._reader = JournalReader(folder, prefix=prefix)
        self._folder = folder
        self._is_narrow = bool(prefix)
        self._on_record = on_record
        self.facts = RunFacts()
        self.history = self._reader.poll()
        for record in self.history:
            self.facts.apply(record)

    def poll(self) -> List[Record]:
        """Take in what was appended by anybody since the last call."""
        records = self._reader.poll()
        for record in records:
            self.facts.apply(record)
            self._on_record(record)
        return records

    def widen(self) -> None:
        """From now on read every writer of the run: this replica leads, or has lost its leader. Idempotent."""
        if not self._is_narrow:
            return
        self._is_narrow = False
        self._reader = JournalReader(self._folder)
        self.facts = RunFacts()
        for record in self._reader.poll():
            self.facts.apply(record)

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
