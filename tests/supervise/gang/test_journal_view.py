from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.journal import JournalReader
from windlass.supervise.gang.journal_view import RunJournalView


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each look at the journal, whether it trusted nothing that is remembered."""
    found: list[bool] = []
    poll = JournalReader.poll

    def count(self: JournalReader, *, is_fresh: bool = False) -> list[Record]:
        found.append(is_fresh)
        return poll(self, is_fresh=is_fresh)

    monkeypatch.setattr(JournalReader, "poll", count)
    return found


def ledger_in(folder: Path, clock: FakeClock, **fields: Any) -> RunJournalView:
    return RunJournalView(folder, "main", 0, clock, on_record=lambda _: None, **fields)


def test_a_leader_on_shared_files_looks_afresh_every_5_s_and_when_it_decides(tmp_path: Path, looks: list[bool]) -> None:
    clock = FakeClock()
    journal = ledger_in(tmp_path, clock, incarnation="7.0")
    journal.poll()
    assert looks == [False, False], "a replica that follows reads what it wrote itself"
    journal.widen()
    assert looks.count(True) == 1
    journal.poll()
    journal.task()
    assert looks.count(True) == 1
    clock.advance(5.0)
    journal.poll()
    assert looks.count(True) == 2
    journal.refresh()
    assert looks.count(True) == 3
    journal.append(events.NOTE, message="m")
    assert looks.count(True) == 3


def test_on_one_machine_nothing_is_looked_at_twice(tmp_path: Path, looks: list[bool]) -> None:
    journal = ledger_in(tmp_path, FakeClock())
    journal.widen()
    journal.refresh()
    assert True not in looks
