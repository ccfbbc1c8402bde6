"""View of the journal for the cores: the facts so far, and durable appends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Callable

from windlass.core.clock import Clock
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.journal import JournalReader, JournalWriter
from windlass.record.state import RunFacts, TaskFacts
from windlass.record.verdict import write_verdict

__all__ = ["RunJournalView"]

_FRESH_EVERY_S = 5.0


class RunJournalView:
    """View of the run's journal folder, for one replica.

    It reads the records of this replica and its user code, metrics included. A leader also reads the rest of the run
    except metrics, which are many and do not affect decisions.

    Args:
        incarnation: start of the job; each start writes a separate file.
        on_record: receives each later record of this replica; `history` has the earlier ones.
    """

    def __init__(
        self,
        folder: Path,
        task: str,
        rank: int,
        clock: Clock,
        *,
        incarnation: str = "",
        on_record: Callable[[Record], None],
    ) -> None:
        self._task, self._clock, self._is_shared = task, clock, bool(incarnation)
        self._fresh_at = float("-inf")
        writer = f"{task}.{rank}.{incarnation}" if incarnation else f"{task}.{rank}"
        self._writer = JournalWriter(folder, writer, clock, has_reserve=True)
        self._folder = folder
        self._own = JournalReader(folder, prefix=f"{task}.{rank}.")
        self._all: JournalReader | None = None
        self._on_record = on_record
        self.facts = RunFacts()
        self.history = self._own.poll()
        for record in self.history:
            self.facts.apply(record)

    def refresh(self) -> None:
        """Read everything appended so far, bypassing the caches of network file systems.

        Call this before a decision.
        """
        self._fresh_at = float("-inf")
        self.poll()

    def poll(self) -> None:
        """Read what was appended since the last call; in a shared folder, caches are bypassed every 5 s."""
        own = self._own.poll()
        for record in own:
            self._on_record(record)
        for record in own if self._all is None else self._all.poll(is_fresh=self._is_due()):
            self.facts.apply(record)

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        if not self._is_shared or now < self._fresh_at + _FRESH_EVERY_S:
            return False
        self._fresh_at = now
        return True

    def widen(self) -> None:
        """From now on, read the records of the whole run: this replica is the leader, or has lost its leader. Idempotent."""
        if self._all is None:
            self._all = JournalReader(self._folder, skip=(events.METRICS,))
            self.facts = RunFacts()
            self.refresh()

    def narrow(self) -> None:
        """Read only this replica's records again, because its leader reads the rest. Idempotent."""
        self._all = None

    def task(self) -> TaskFacts:
        """Read new records, and return the facts about this task."""
        self.poll()
        return self.facts.task(self._task)

    def append(self, kind: str, **data: Any) -> Record:
        """Append a record durably; the end of the task is also written to the job's folder."""
        record = self._writer.append(kind, task=self._task, **data)
        if kind == events.TASK_ENDED:
            with contextlib.suppress(OSError):  # the record is on disk; a full disk is reported elsewhere
                write_verdict(self._folder.parent / "jobs" / f"{self._task}-{data['job']}", record)
        return record

    def close(self) -> None:
        """Close the journal writer."""
        self._writer.close()
