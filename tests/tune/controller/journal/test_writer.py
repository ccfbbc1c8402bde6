"""The head's journal: lease, torn tails, group commit, a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.controller.journal.stream import JournalStream
from windlass.tune.controller.journal.writer import HeadJournal
from windlass.tune.folder import SweepFolder


def _opened(folder: Path, clock: FakeClock | None = None) -> HeadJournal:
    journal = HeadJournal(SweepFolder(folder), clock or FakeClock())
    for _ in journal.read():
        pass
    journal.begin()
    return journal


def _written(folder: Path, num: int) -> bytes:
    journal = _opened(folder)
    for number in range(num):
        journal.append("trial-started", {"trial": f"{number:05d}", "slot": "s" * number}, journal.now())
        journal.write()
    journal.close()
    return (folder / "journal/head.wj").read_bytes()


def test_a_tail_torn_at_any_byte_is_cut_to_whole_records_and_goes_on(tmp_path: Path) -> None:
    content = _written(tmp_path / "whole", 6)
    path = tmp_path / "journal/head.wj"
    for num_bytes in range(len(content) + 1):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content[:num_bytes])
        whole = content[: content.rfind(b"\n", 0, num_bytes) + 1]
        journal = _opened(tmp_path)
        assert path.read_bytes() == whole
        assert journal.seq == whole.count(b"\n")
        journal.append("search-ended", {"why": "x"}, journal.now())
        journal.write()
        journal.close()
        records = JournalStream(SweepFolder(tmp_path)).poll()
        assert [record.seq for record in records] == list(range(1, whole.count(b"\n") + 2))


def test_damage_in_the_middle_of_a_tail_is_not_read_as_a_record(tmp_path: Path) -> None:
    content = bytearray(_written(tmp_path, 3))
    content[-10] ^= 1
    (tmp_path / "journal/head.wj").write_bytes(content)
    journal = _opened(tmp_path)
    assert journal.seq == 2
    journal.close()


def test_a_record_that_is_missing_in_the_middle_is_told_and_nothing_is_cut(tmp_path: Path) -> None:
    whole = _written(tmp_path, 3)
    lines = whole.splitlines(keepends=True)
    path = SweepFolder(tmp_path).head_journal
    for damaged in (lines[0] + lines[2], lines[0] + lines[1].replace(b"kind", b"kidn", 1) + lines[2]):
        path.write_bytes(damaged)
        journal = HeadJournal(SweepFolder(tmp_path), FakeClock())
        with pytest.raises(PreconditionError, match="record 1 is followed by record 3") as caught:
            list(journal.read())
        journal.close()
        assert caught.value.code == "sweep-journal-damaged"
        assert path.read_bytes() == damaged


def test_a_folder_that_takes_no_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match=r"cannot write to .*: Not a directory") as caught:
        HeadJournal(SweepFolder(tmp_path / "file" / "digits"), FakeClock())
    assert caught.value.code == "not-writable"


def test_a_second_head_is_told_who_the_first_is(tmp_path: Path) -> None:
    first = _opened(tmp_path)
    with pytest.raises(PreconditionError) as caught:
        HeadJournal(SweepFolder(tmp_path), FakeClock())
    assert caught.value.code == "in-use"
    assert f"process {os.getpid()} on {os.uname().nodename}" in str(caught.value)
    first.close()
    _opened(tmp_path).close()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = _opened(tmp_path)
    journal.append("search-ended", {"why": "a"}, 1.0)
    journal.write()
    pwrite = os.pwrite
    calls: list[int] = []

    def half(file: int, content: Any, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(file, bytes(content)[:7], offset)

    monkeypatch.setattr(os, "pwrite", half)
    journal.append("search-ended", {"why": "b"}, 2.0)
    with pytest.raises(PreconditionError) as caught:
        journal.write()
    assert caught.value.code == "not-writable"
    monkeypatch.undo()
    journal.close()
    assert [record.data["why"] for record in JournalStream(SweepFolder(tmp_path)).poll()] == ["a"]


def test_what_json_cannot_hold_is_refused_and_not_counted(tmp_path: Path) -> None:
    journal = _opened(tmp_path)
    with pytest.raises(UsageError) as caught:
        journal.append("trial-suggested", {"config": {"model": object()}}, 1.0)
    assert caught.value.code == "not-serialisable"
    assert journal.seq == 0
    journal.close()


def test_the_disk_is_asked_at_most_every_50_ms_unless_it_is_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    journal = _opened(tmp_path, clock)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)

    def write() -> None:
        journal.append("search-ended", {"why": ""}, journal.now())
        journal.write()

    write()
    assert journal.sync() == -1.0
    write()
    assert 0.0 < journal.sync() <= 0.05
    assert len(synced) == 1
    journal.sync(is_urgent=True)
    assert len(synced) == 2
    write()
    clock.advance(0.06)
    assert journal.sync() == -1.0
    assert len(synced) == 3
    journal.close()


def test_time_never_goes_back_though_the_wall_clock_does(tmp_path: Path) -> None:
    clock = FakeClock()
    journal = _opened(tmp_path, clock)
    journal.append("search-ended", {"why": ""}, journal.now())
    journal.write()
    before = journal.now()
    clock.jump(-3600)
    assert journal.now() == before
    journal.close()
    after = _opened(tmp_path, clock)
    assert after.now() >= before
    after.close()


def test_what_json_cannot_hold_is_named_with_its_place(tmp_path: Path) -> None:
    journal = _opened(tmp_path)
    with pytest.raises(UsageError) as caught:
        journal.append("trial-suggested", {"trial": "0", "config": {"a": 1, "net": {"act": [1, len]}}}, 0.0)
    assert caught.value.code == "not-serialisable"
    assert "`config/net/act/1` is <built-in function len>" in str(caught.value)
    journal.close()
