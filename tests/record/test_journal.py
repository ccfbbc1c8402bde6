from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError
from windlass.record.frames import Record, encode
from windlass.record.journal import JournalReader, JournalWriter, read_journal


def writer_in(folder: Path, name: str = "w", *, has_reserve: bool = False) -> JournalWriter:
    return JournalWriter(folder, name, FakeClock(), has_reserve=has_reserve)


def messages(folder: Path) -> list[str]:
    return [record.data["message"] for record in read_journal(folder)]


def test_what_is_appended_is_read_with_numbers_from_one(tmp_path: Path) -> None:
    writer = writer_in(tmp_path / "journal")
    for text in ("a", "b"):
        writer.append("note", message=text)
    writer.close()
    again = writer_in(tmp_path / "journal")
    again.append("note", message="c")
    assert [(r.seq, r.writer, r.data["message"]) for r in read_journal(tmp_path / "journal")] == [
        (1, "w", "a"),
        (2, "w", "b"),
        (3, "w", "c"),
    ]


def test_a_torn_tail_is_cut_when_the_writer_comes_back(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.append("note", message="a")
    writer.append("note", message="b")
    writer.close()
    path = tmp_path / "w.wj"
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for length in range(first, len(content)):
        path.write_bytes(content[:length])
        again = writer_in(tmp_path)
        assert path.read_bytes() == content[:first]
        record = again.append("note", message="c")
        again.close()
        assert (record.seq, messages(tmp_path)) == (2, ["a", "c"])


def test_two_writers_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.record.journal._LOCK_WAIT_S", 0.1)
    writer = writer_in(tmp_path)
    writer.append("note", message="a")
    with pytest.raises(PreconditionError, match=r"w\.wj is being written by another process") as caught:
        writer_in(tmp_path)
    assert caught.value.code == "in-use"
    writer.close()
    writer_in(tmp_path).append("note", message="b")
    assert messages(tmp_path) == ["a", "b"]


def test_two_writers_of_two_names_have_two_files(tmp_path: Path) -> None:
    first, second = writer_in(tmp_path, "a"), writer_in(tmp_path, "b")
    for number in range(3):
        first.append("note", message=f"a{number}")
        second.append("note", message=f"b{number}")
    assert messages(tmp_path) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert [record.seq for record in read_journal(tmp_path)] == [1, 2, 3, 1, 2, 3]


def test_a_name_in_a_new_file_is_made_durable_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("windlass.record.journal.fsync_directory", synced.append)
    writer = writer_in(tmp_path)
    writer.append("note", is_durable=False, message="a")
    assert synced == []
    writer.append("note", message="b")
    writer.append("note", message="c")
    writer.close()
    writer_in(tmp_path).append("note", message="d")
    assert synced == [tmp_path]


def test_an_index_sees_on_the_folder_that_an_old_writer_wrote_again(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.append("note", message="a")
    writer.close()
    os.utime(tmp_path, (1000.0, 1000.0))
    writer_in(tmp_path).append("note", message="b")
    assert tmp_path.stat().st_mtime > 1000.0


def full_disk(monkeypatch: pytest.MonkeyPatch, *, num_failures: int, num_written: int | None = None) -> None:
    """Let the next writes fail, or write only a part."""
    real, left = os.pwrite, [num_failures]

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if left[0] == 0:
            return real(descriptor, data, offset)
        left[0] -= 1
        if num_written is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:num_written], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("num_written", [None, 0, 1, 30])
def test_a_full_disk_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_written: int | None
) -> None:
    writer = writer_in(tmp_path)
    writer.append("note", message="a")
    full_disk(monkeypatch, num_failures=1, num_written=num_written)
    with pytest.raises(OSError, match=r"(?i)no space left"):
        writer.append("note", message="lost")
    assert (tmp_path / "w.wj").read_bytes().count(b"\n") == 1
    writer.append("note", message="b")
    assert [(record.seq, record.data["message"]) for record in read_journal(tmp_path)] == [(1, "a"), (2, "b")]


def test_the_reserve_lets_the_end_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_in(tmp_path, has_reserve=True)
    reserve = tmp_path / ".w.reserve"
    assert reserve.stat().st_size == 64 * 1024
    full_disk(monkeypatch, num_failures=1)
    writer.append("note", message="the end")
    assert not reserve.exists()
    assert messages(tmp_path) == ["the end"]
    full_disk(monkeypatch, num_failures=1)
    with pytest.raises(OSError, match=r"(?i)no space left"):
        writer.append("note", message="too late")
    writer.close()


def test_closing_gives_the_reserve_back(tmp_path: Path) -> None:
    writer_in(tmp_path, has_reserve=True).close()
    assert os.listdir(tmp_path) == ["w.wj"]


def test_a_reserve_that_does_not_fit_gives_the_lock_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            writer_in(tmp_path, has_reserve=True)
    writer_in(tmp_path).append("note", message="a")


def test_a_reader_returns_each_record_once(tmp_path: Path) -> None:
    reader, writer = JournalReader(tmp_path / "later"), None
    assert reader.poll() == []
    writer = writer_in(tmp_path / "later")
    writer.append("note", message="a")
    assert [record.data["message"] for record in reader.poll()] == ["a"]
    assert reader.poll() == []
    writer.append("note", message="b")
    writer_in(tmp_path / "later", "other").append("note", message="c")
    assert [record.data["message"] for record in reader.poll()] == ["c", "b"]


def test_a_reader_of_some_writers(tmp_path: Path) -> None:
    for name in ("train.0", "train.1", "score.0"):
        writer_in(tmp_path, name).append("note", message=name)
    (tmp_path / "notes.txt").write_text("no journal")
    assert [record.writer for record in JournalReader(tmp_path, prefix="train.").poll()] == ["train.0", "train.1"]


def test_a_reader_passes_kinds_over(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.append("metrics", values={})
    writer.append("note", message="a")
    assert [record.kind for record in read_journal(tmp_path, skip=("metrics",))] == ["note"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=12))
def test_a_reader_that_meets_records_half_written(cuts: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path, reader, seen, written = Path(folder, "w.wj"), JournalReader(Path(folder)), [], 0
        content = b"".join(encode(record) for record in _numbered(12))
        for cut in cuts:
            written = min(len(content), written + cut)
            path.write_bytes(content[:written])
            seen += reader.poll()
        path.write_bytes(content)
        seen += reader.poll()
        assert [record.seq for record in seen] == list(range(1, 13))
        assert reader.num_damaged == 0


def _numbered(count: int) -> list[Record]:
    return [Record("note", "w", seq, 1.0, {"message": "x" * seq}) for seq in range(1, count + 1)]


def test_damage_is_counted_once(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for text in ("a", "b"):
        writer.append("note", message=text)
    content = (tmp_path / "w.wj").read_bytes()
    (tmp_path / "w.wj").write_bytes(content.replace(b'"a"', b'"z"'))
    reader = JournalReader(tmp_path)
    assert [record.data["message"] for record in reader.poll()] == ["b"]
    reader.poll()
    assert reader.num_damaged == 1


def test_a_damaged_record_at_the_end_is_counted_and_a_torn_tail_is_not(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for text in ("a", "b"):
        writer.append("note", message=text)
    path = tmp_path / "w.wj"
    content = path.read_bytes()
    reader = JournalReader(tmp_path)
    path.write_bytes(content.replace(b'"b"', b'"z"'))
    for _ in range(2):
        reader.poll()
        assert reader.num_damaged == 1
    path.write_bytes(content[:-1])
    reader.poll()
    assert reader.num_damaged == 0
    path.write_bytes(content)
    assert [record.data["message"] for record in reader.poll()] == ["b"]
    assert reader.num_damaged == 0


def test_what_is_no_file_of_a_writer_is_passed_over_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.wj").mkdir()
    (tmp_path / "b.wj").symlink_to(tmp_path / "gone")
    writer_in(tmp_path).append("note", message="a")
    reader = JournalReader(tmp_path)
    assert [record.writer for record in reader.poll()] == ["w"]
    reader.poll()
    assert reader.num_damaged == 1


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        writer_in(tmp_path, name).append("note", message=name)
    real = open

    def no_permission(path: str, mode: str) -> object:
        if path.endswith("a.wj"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, mode)

    reader = JournalReader(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("windlass.record.journal.open", no_permission, raising=False)
        assert [record.writer for record in reader.poll()] == ["b"]
        assert reader.num_damaged == 1
    assert [record.writer for record in reader.poll()] == ["a"]
    assert reader.num_damaged == 0


def test_a_journal_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("")
    with pytest.raises(PreconditionError, match="journal is not a folder") as caught:
        read_journal(tmp_path / "journal")
    assert caught.value.code == "run-damaged"


def test_a_record_that_lacks_what_its_kind_must_hold_is_damage(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for kind, data in (("task-ended", {"task": "a"}), ("finish", {"task": "a", "attempt": 1, "rank": 0, "code": "1"})):
        writer.append(kind, **data)
    writer.append("of-a-later-version")
    reader = JournalReader(tmp_path)
    assert [record.kind for record in reader.poll()] == ["of-a-later-version"]
    assert reader.num_damaged == 2


def test_a_fresh_look_trusts_no_size_that_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = writer_in(tmp_path), JournalReader(tmp_path)
    writer.append("note", message="a")
    stat = os.stat

    def remembered(path: str) -> os.stat_result:
        """A size from before anything was written."""
        return os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0)) if str(path).endswith(".wj") else stat(path)

    monkeypatch.setattr(os, "stat", remembered)
    assert reader.poll() == []
    assert [record.data["message"] for record in reader.poll(is_fresh=True)] == ["a"]
    assert reader.poll(is_fresh=True) == []
    assert reader.num_damaged == 0


def test_a_folder_that_has_not_changed_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, reader = writer_in(tmp_path), JournalReader(tmp_path)
    first.append("note", message="a")
    listings = []
    listdir = os.listdir

    def counted(path: str) -> list[str]:
        listings.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    monkeypatch.setattr("windlass.record.journal.time.monotonic", lambda: 0.0)
    assert len(reader.poll()) == 1
    assert reader.poll() == []
    assert len(listings) == 2, "what changed a moment ago may change again without a sign"
    os.utime(tmp_path, (1e9, 1e9))
    for message in "bcd":
        first.append("note", message=message)
        os.utime(tmp_path, (1e9, 1e9))
        assert [record.data["message"] for record in reader.poll()] == [message]
    assert len(listings) == 3
    JournalWriter(tmp_path, "other", FakeClock(), has_reserve=False).append("note", message="e")
    assert [record.data["message"] for record in reader.poll()] == ["e"]
    monkeypatch.setattr("windlass.record.journal.time.monotonic", lambda: 6.0)
    num = len(listings)
    reader.poll()
    assert len(listings) == num + 1


def test_a_fresh_look_changes_the_folder_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(tmp_path, (0, 0))
    reader = JournalReader(tmp_path)
    reader.poll()
    assert tmp_path.stat().st_mtime == 0
    reader.poll(is_fresh=True)
    assert tmp_path.stat().st_mtime > 0
    assert os.listdir(tmp_path) == []
    writer_in(tmp_path).append("note", message="a")

    def full(_path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    assert len(reader.poll(is_fresh=True)) == 1
    assert JournalReader(tmp_path / "later").poll(is_fresh=True) == []


def test_a_writer_without_file_locks_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(PreconditionError, match=r"w\.wj has no file locks: Function not implemented") as caught:
        writer_in(tmp_path)
    assert caught.value.code == "no-file-locks"
