from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError
from windlass.runs.logs import LogFollower, LogLine, list_logs, read
from windlass.runs.store import RunFolder
from windlass.supervise.logs.index import IndexRecord


def make(folder: Path, **logs: str) -> RunFolder:
    """Logs by `attempt_task_rank`."""
    run = RunFolder(folder / "exp-abcdefgh")
    for key, text in logs.items():
        write(run, key, text)
    return run


def write(run: RunFolder, key: str, text: str) -> Path:
    attempt, task, rank = key.lstrip("a").split("_")
    path = run.logs / attempt / task / f"{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(text)
    return path


def texts(lines: object) -> list[str]:
    assert hasattr(lines, "__iter__")
    return [f"{line.task}.{line.rank} {line.text}" for line in lines]


def test_logs_are_listed_in_order(tmp_path: Path) -> None:
    run = make(tmp_path, a10_train_0="", a2_train_10="", a2_train_9="", a2_prep_0="")
    (run.logs / "2" / "train" / "9.log.idx").write_bytes(b"")
    (run.logs / "2" / "train" / "x.log").write_bytes(b"")
    assert [(log.attempt, log.label) for log in list_logs(run)] == [
        (2, "prep.0"),
        (2, "train.9"),
        (2, "train.10"),
        (10, "train.0"),
    ]
    assert [log.attempt for log in list_logs(run, task="train", rank=0)] == [10]


def test_the_newest_attempt_is_read_unless_another_is_asked_for(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="first\n", a2_train_0="second\n")
    assert b"".join(read(run, task="train")) == b"second\n"
    assert b"".join(read(run, task="train", attempt=1)) == b"first\n"


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="")
    with pytest.raises(NotFoundError) as caught:
        read(run, task="train", rank=3, attempt=1)
    assert caught.value.message == "run exp-abcdefgh has no log of task 'train', replica 3, attempt 1"
    assert caught.value.hint == "existing logs: train.0 of attempt 1"
    with pytest.raises(NotFoundError) as caught:
        read(RunFolder(tmp_path / "exp-other123"), task="train")
    assert caught.value.hint == "no task has started yet"


def test_since_starts_at_the_beginning_of_a_line(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="old\nold too\nnew\nnewer\n")
    second = 1_000_000_000
    index = [IndexRecord(0, 0, 100 * second), IndexRecord(6, 1, 200 * second), IndexRecord(12, 2, 300 * second)]
    (run.logs / "1" / "train" / "0.log.idx").write_bytes(b"".join(record.pack() for record in index))
    assert b"".join(read(run, task="train", since=200.0)) == b"new\nnewer\n"  # byte 6 is in the middle of a line
    assert b"".join(read(run, task="train", since=250.0)) == b"new\nnewer\n"
    assert b"".join(read(run, task="train", since=400.0)) == b""
    assert b"".join(read(run, task="train", since=1.0)).startswith(b"old\n")


def test_without_an_index_everything_is_read(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="a\n")
    assert b"".join(read(run, task="train", since=200.0)) == b"a\n"


def test_a_follower_yields_each_whole_line_once(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="one\ntw")
    follower = LogFollower(run)
    assert texts(follower.poll()) == ["train.0 one"]
    assert texts(follower.poll()) == []
    write(run, "a1_train_0", "o\nthree")
    write(run, "a1_train_1", "other\r\n")
    assert texts(follower.poll()) == ["train.0 two", "train.1 other"]
    write(run, "a2_train_0", "again\n")
    assert list(follower.poll()) == [LogLine(task="train", rank=0, attempt=2, text="again")]
    assert texts(follower.rest()) == ["train.0 three"]
    assert texts(follower.rest()) == []


def test_a_follower_reads_no_byte_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windlass.runs import logs

    run, offsets = make(tmp_path, a1_train_0="one\n"), []
    real = logs._pieces

    def counted(path: Path, offset: int) -> object:
        offsets.append(offset)
        return real(path, offset)

    monkeypatch.setattr(logs, "_pieces", counted)
    follower = LogFollower(run)
    list(follower.poll())
    list(follower.poll())
    write(run, "a1_train_0", "two\n")
    list(follower.poll())
    assert offsets == [0, 4]


def test_a_follower_of_one_replica(tmp_path: Path) -> None:
    run = make(tmp_path, a1_train_0="zero\n", a1_train_1="one\n", a1_prep_1="prep\n")
    assert texts(LogFollower(run, task="train", rank=1).poll()) == ["train.1 one"]


def test_no_logs_yet(tmp_path: Path) -> None:
    assert list(LogFollower(make(tmp_path)).poll()) == []


def test_text_that_is_not_utf8_and_lines_longer_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.runs.logs._PIECE_BYTES", 4)
    run = make(tmp_path, a1_train_0="a long line\nb\n")
    path = run.logs / "1" / "train" / "0.log"
    path.write_bytes(path.read_bytes() + b"\xff\n")
    assert texts(LogFollower(run).poll()) == ["train.0 a long line", "train.0 b", "train.0 \ufffd"]


def test_a_progress_bar_is_shown_while_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("windlass.runs.logs.time.monotonic", lambda: now)
    run = make(tmp_path, a1_train_0="start\n\r 0%|    |\r10%|#   |")
    path, follower = run.logs / "1" / "train" / "0.log", LogFollower(run)

    def more(text: str) -> list[str]:
        with path.open("ab") as file:
            file.write(text.encode())
        return texts(follower.poll())

    assert more("") == ["train.0 start", "train.0 10%|#   |"]
    now = 0.5
    assert more("\r20%|##  |") == []
    now = 1.5
    assert more("\r30%|### |") == ["train.0 30%|### |"]
    now = 3.0
    assert more("\r100%|####|\nnext\r\n") == ["train.0 100%|####|", "train.0 next"]
    assert more("\r5%|") == ["train.0 5%|"]
    assert more("\nend") == []
    assert texts(follower.rest()) == ["train.0 end"]
