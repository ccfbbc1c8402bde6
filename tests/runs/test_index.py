from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs.journals import RunScript, home_in
from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.index import Index


def index_of(folder: Path, clock: FakeClock | None = None) -> Index:
    return Index(home_in(folder), folder=folder / "cache", clock=clock)


def script(folder: Path, run_id: str, created_at: float = 1000.0) -> RunScript:
    return RunScript(home_in(folder), run_id, FakeClock(created_at))


def test_a_row_says_what_ps_shows(tmp_path: Path) -> None:
    script(tmp_path, "exp-abcdefgh").submit().start().end("failed", "out-of-memory").close()
    index = index_of(tmp_path)
    assert index.refresh() == 1
    (row,) = index.rows()
    assert (row.id, row.name, row.why, row.state, row.cause) == (
        "exp-abcdefgh",
        "exp",
        "a test",
        "failed",
        "out-of-memory",
    )
    assert (row.tasks, row.num_attempts, row.note, row.is_terminal) == ({"train": "failed"}, 1, "", True)
    assert (row.created_at, row.ended_at) == (1000.0, 1000.0)


def test_the_reason_of_a_waiting_run(tmp_path: Path) -> None:
    run = script(tmp_path, "exp-abcdefgh").submit()
    run.job.append(events.TASK_QUEUED, task="train", job=1, reason="waits for 2 GPUs")
    index = index_of(tmp_path)
    index.refresh()
    assert [(row.state, row.reason) for row in index.rows()] == [("queued", "waits for 2 GPUs")]


def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    first = script(tmp_path, "exp-aaaaaaaa").submit()
    script(tmp_path, "exp-bbbbbbbb").submit().close()
    index = index_of(tmp_path)
    assert [index.refresh(), index.refresh()] == [2, 0]
    first.start()
    assert index.refresh() == 1
    assert {row.id: row.state for row in index.rows()} == {"exp-aaaaaaaa": "running", "exp-bbbbbbbb": "queued"}


def test_a_settled_run_costs_one_look_until_its_journal_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = script(tmp_path, "exp-aaaaaaaa").submit().start().end("failed", "killed").close()
    old = 1_700_000_000.0
    for path in (*run.journal.iterdir(), run.journal):
        os.utime(path, (old, old))
    clock = FakeClock(old + 700.0)
    index = index_of(tmp_path, clock)
    assert index.refresh() == 1
    monkeypatch.setattr("windlass.runs.index._signature", None)  # would fail if it were looked at
    assert index.refresh() == 0
    monkeypatch.undo()
    writer = JournalWriter(run.journal, "client-1", clock)  # the same file, opened again by `retry`
    writer.append(events.JOB_INTENDED, task="train", job=2, token="t", backend="local", resets_budgets=True)
    assert index.refresh() == 1
    assert [row.state for row in index.rows()] == ["queued"]


def test_a_run_that_just_ended_is_still_watched(tmp_path: Path) -> None:
    run = script(tmp_path, "exp-aaaaaaaa").submit().start().end()
    newest = max(path.stat().st_mtime for path in run.run.journal.iterdir())
    index = index_of(tmp_path, FakeClock(newest + 60.0))
    index.refresh()
    run.job.append(events.OUTPUTS, is_durable=False, task="train", attempt=1, num_files=1, bytes=1, digest="d")
    assert index.refresh() == 1


def test_a_removed_run_goes(tmp_path: Path) -> None:
    run = script(tmp_path, "exp-aaaaaaaa").close()
    index = index_of(tmp_path)
    index.refresh()
    shutil.rmtree(run.path)
    index.refresh()
    assert index.rows() == []


def test_filters(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "b2")):
        run = script(tmp_path, f"{name}-{number:08d}", 1000.0 + number).submit()
        if name != "a":
            run.start().end("succeeded" if name == "b" else "failed")
    index = index_of(tmp_path)
    index.refresh()
    assert [row.name for row in index.rows()] == ["b2", "b", "a"]
    assert [row.name for row in index.rows(states=["queued", "failed"])] == ["b2", "a"]
    assert [row.name for row in index.rows(name="b")] == ["b"]
    assert [row.name for row in index.rows(name="b*")] == ["b2", "b"]
    assert index.rows(name="[ab]") == []
    assert [row.name for row in index.rows(since=1001.0)] == ["b2", "b"]
    assert [row.name for row in index.rows(limit=1)] == ["b2"]


def test_damaged_runs_are_rows_with_a_note(tmp_path: Path) -> None:
    script(tmp_path, "good-00000000").submit().close()
    runs = home_in(tmp_path).runs
    (runs / "empty-00000000").mkdir()
    garbage = script(tmp_path, "garbage-00000000").submit().close()
    for path in garbage.journal.iterdir():
        path.write_bytes(os.urandom(500) + b"\n" + os.urandom(500))
    strange = script(tmp_path, "strange-00000000").submit()
    strange.client.append(events.TASK_ENDED, task="train", job=1, verdict="exploded")
    flipped = script(tmp_path, "flipped-00000000").submit().start().close()
    content = bytearray((flipped.journal / "client-1.wj").read_bytes())
    content[100] ^= 1
    (flipped.journal / "client-1.wj").write_bytes(bytes(content))
    (flipped.path / "plan.json").unlink()
    index = index_of(tmp_path)
    index.refresh()
    rows = {row.name: row for row in index.rows()}
    assert (rows["good"].state, rows["good"].note) == ("queued", "")
    assert (rows["empty"].state, rows["empty"].note) == (
        "unknown",
        "the journal has no record of the launch; run empty-00000000 has no plan.json",
    )
    assert rows["garbage"].state == "unknown"
    assert rows["garbage"].note.endswith(" skipped")
    assert (rows["strange"].state, rows["strange"].note) == ("queued", "1 damaged record skipped")
    assert rows["flipped"].note == "1 damaged record skipped; run flipped-00000000 has no plan.json"


@pytest.mark.parametrize("damage", ["deleted", "garbage", "cut", "other columns", "a folder's text", "other values"])
def test_a_broken_database_is_made_anew(tmp_path: Path, damage: str) -> None:
    for number in range(30):
        script(tmp_path, f"exp-{number:08d}").submit().close()
    index = index_of(tmp_path)
    index.refresh()
    before = index.dump()
    index.close()
    if damage == "deleted":
        index.path.unlink()
    elif damage == "garbage":
        index.path.write_bytes(os.urandom(10_000))
    elif damage == "cut":
        index.path.write_bytes(index.path.read_bytes()[:5000])
    elif damage == "a folder's text":
        index.path.write_bytes(b"")
    else:
        database = sqlite3.connect(index.path)
        if damage == "other columns":
            database.execute("DROP TABLE runs")
            database.execute("CREATE TABLE runs (id TEXT)")
        else:
            database.execute("UPDATE runs SET tasks = 'no json'")
        database.commit()
        database.close()
    for again in (index_of(tmp_path), index_of(tmp_path)):
        assert again.rows(limit=1) != [] or again.refresh() == 30
        assert again.dump() == before
        again.close()


def test_without_a_place_for_the_database_it_lives_in_memory(tmp_path: Path) -> None:
    script(tmp_path, "exp-abcdefgh").submit().close()
    (tmp_path / "cache").write_text("a file in the way")
    index = index_of(tmp_path)
    index.refresh()
    assert [row.id for row in index.rows()] == ["exp-abcdefgh"]
    assert (tmp_path / "cache").read_text() == "a file in the way"


def test_a_database_locked_for_long_does_not_stop_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.runs.index._BUSY_S", 0.01)
    run = script(tmp_path, "exp-abcdefgh").submit()
    index = index_of(tmp_path)
    index.refresh()
    other = sqlite3.connect(index.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    run.start()
    assert index.refresh() == 1 or index.rows()
    assert [row.state for row in index.rows()] == ["running"]
    other.close()


_LOOK = """
import sys
from pathlib import Path
from windlass.runs.home import Home
from windlass.runs.index import Index
index = Index(Home(Path(sys.argv[1])), folder=Path(sys.argv[2]))
for _ in range(5):
    index.rebuild()
    assert len(index.rows()) == 20, len(index.rows())
"""


def test_many_processes_at_once(tmp_path: Path) -> None:
    for number in range(20):
        script(tmp_path, f"exp-{number:08d}").submit().close()
    command = [sys.executable, "-c", _LOOK, str(tmp_path / "home"), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["submit", "start", "end", "fail", "metric", "look", "cut"])),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_the_index_kept_up_to_date_equals_the_one_built_anew(steps: list[tuple[int, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as root:
        folder, scripts = Path(root), {}
        kept = index_of(folder)
        for number, step in steps:
            if number not in scripts:
                scripts[number] = script(folder, f"exp-{number:08d}", 1000.0 + number)
            _take(scripts[number], step)
            if step == "look":
                kept.refresh()
        kept.refresh()
        anew = Index(Home(folder / "home"), folder=folder / "cache2")
        anew.rebuild()
        before = kept.dump()
        assert before == anew.dump()
        kept.rebuild()
        assert kept.dump() == before
        for item in scripts.values():
            item.close()


def _take(run: RunScript, step: str) -> None:
    match step:
        case "submit":
            run.submit()
        case "start":
            run.start()
        case "end":
            run.end()
        case "fail":
            run.end("failed", "killed")
        case "metric":
            run.metric("loss", 1, 1.0)
        case "cut":
            (run.run.path / "plan.json").unlink(missing_ok=True)
