"""Seal of a head's journal: whoever makes machines is dead, and whoever comes later sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.record import journal
from windlass.record.journal import JournalWriter, read_journal
from windlass.supervise.node import seal
from windlass.supervise.node.seal import FLEET_JOURNAL, FLEET_WRITER, is_sealed, seal_fleet, unseal_fleet


def sealed(folder: Path) -> bool:
    return is_sealed(read_journal(folder / FLEET_JOURNAL))


def test_a_journal_is_sealed_and_unsealed_and_keeps_its_records(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / FLEET_JOURNAL, FLEET_WRITER, SystemClock())
    writer.append("cluster.intent", token="1")
    seal_fleet(tmp_path, writer.close)
    assert sealed(tmp_path)
    seal_fleet(tmp_path, lambda: None)
    unseal_fleet(tmp_path)
    unseal_fleet(tmp_path)
    assert not sealed(tmp_path)
    assert next(each.kind for each in read_journal(tmp_path / FLEET_JOURNAL)) == "cluster.intent"


def test_a_head_that_never_made_machines_is_sealed_too(tmp_path: Path) -> None:
    seal_fleet(tmp_path, lambda: None)
    assert sealed(tmp_path)


def test_a_monitor_that_started_again_is_ended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LOCK_WAIT_S", 0.1)
    writer = JournalWriter(tmp_path / FLEET_JOURNAL, FLEET_WRITER, SystemClock())
    calls: list[str] = []

    def end() -> None:
        calls.append("end")
        if len(calls) == 3:
            writer.close()

    seal_fleet(tmp_path, end)
    assert len(calls) == 3
    assert sealed(tmp_path)


def test_a_monitor_that_does_not_die_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(seal, "_LIMIT_S", 0.0)
    writer = JournalWriter(tmp_path / FLEET_JOURNAL, FLEET_WRITER, SystemClock())
    with pytest.raises(PreconditionError) as caught:
        seal_fleet(tmp_path, lambda: None)
    assert caught.value.code == "in-use"
    writer.close()
    assert not sealed(tmp_path)
