from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.names import new_run_id
from windlass.runs.store import RunFolder, create, find, run_ids


def make(folder: Path, *ids: str) -> None:
    for number, run_id in enumerate(ids):
        run = create(home_in(folder), run_id, {"plan.json": b"{}"})
        os.utime(run.path / "plan.json", (1000.0 + number, 1000.0 + number))


def test_a_new_run_has_its_folders_and_files(tmp_path: Path) -> None:
    run = create(home_in(tmp_path), "exp-abcdefgh", {"plan.json": b'{"name": "exp"}'})
    assert run.id == "exp-abcdefgh"
    assert run.plan() == {"name": "exp"}
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    for folder in (run.journal, run.logs, run.jobs, run.out("t").parent, run.checkpoints("t").parent):
        assert folder.is_dir()
    assert run.facts().tasks == {}


def test_an_id_is_used_once(tmp_path: Path) -> None:
    make(tmp_path, "exp-abcdefgh")
    with pytest.raises(PreconditionError, match="run exp-abcdefgh already exists"):
        create(home_in(tmp_path), "exp-abcdefgh", {})
    assert os.listdir(home_in(tmp_path).runs) == ["exp-abcdefgh"]


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("windlass.runs.store.write_atomic", full)
    with pytest.raises(PreconditionError, match="No space left on device"):
        create(home_in(tmp_path), "exp-abcdefgh", {"plan.json": b"{}"})
    assert os.listdir(home_in(tmp_path).runs) == []


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("exp-abcdefgh", "exp-abcdefgh"),
        ("last", "other-vwxyzabc"),
        ("exp", "exp-kmnpqrst"),
        ("exp-a", "exp-abcdefgh"),
        ("oth", "other-vwxyzabc"),
        ("vwxy", "other-vwxyzabc"),
        ("qrst", "exp-kmnpqrst"),
        ("exp-2", "exp-2-11111111"),
    ],
)
def test_what_a_reference_means(tmp_path: Path, ref: str, found: str) -> None:
    make(tmp_path, "exp-2-11111111", "exp-abcdefgh", "exp-kmnpqrst", "other-vwxyzabc")
    assert find(home_in(tmp_path), ref).id == found


def test_several_that_fit_are_listed(tmp_path: Path) -> None:
    make(tmp_path, *(f"exp-a{number:07d}" for number in range(10)))
    with pytest.raises(UsageError) as caught:
        find(home_in(tmp_path), "exp-a")
    assert caught.value.message.startswith("'exp-a' matches 10 runs: exp-a0000000, exp-a0000001, ")
    assert caught.value.message.endswith("exp-a0000007 and 2 more")
    assert caught.value.hint == "give more letters"


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("xep", "did you mean `exp`?"),
        ("exp-abcdefgx", "did you mean `exp-abcdefgh`?"),
        ("qqq", "`windlass ps` lists them"),
        ("fgh", "give at least 4 of its last letters, or the beginning of its id"),
        ("a", "give at least 4 of its last letters, or the beginning of its id"),
        ("", "`windlass ps` lists them"),
    ],
)
def test_one_that_is_not_there(tmp_path: Path, ref: str, hint: str) -> None:
    make(tmp_path, "exp-abcdefgh")
    with pytest.raises(NotFoundError) as caught:
        find(home_in(tmp_path), ref)
    assert (caught.value.message, caught.value.hint) == (f"no run {ref!r}", hint)


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run 'last': there are no runs yet"):
        find(home_in(tmp_path), "last")


def test_what_is_not_a_run_is_passed_over(tmp_path: Path) -> None:
    runs = home_in(tmp_path).runs
    (runs / ".exp-abcdefgh.1.ff").mkdir()
    (runs / "notes.txt").write_text("")
    assert run_ids(home_in(tmp_path)) == []


def test_documents_that_are_missing_or_damaged(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "exp-abcdefgh")
    run.path.mkdir()
    with pytest.raises(NotFoundError, match=r"run exp-abcdefgh has no plan\.json"):
        run.plan()
    (run.path / "plan.json").write_text("{")
    with pytest.raises(PreconditionError, match=r"plan\.json is damaged"):
        run.plan()
    (run.path / "provenance.json").write_text("[]")
    with pytest.raises(PreconditionError, match="not an object"):
        run.provenance()


def test_facts_are_those_of_the_journal(tmp_path: Path) -> None:
    run = RunScript(home_in(tmp_path), "exp-abcdefgh").submit().start().metric("loss", 1, 0.5).end().close()
    assert str(run.facts().state) == "succeeded"


def test_the_longest_name_makes_a_run_that_is_found(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    run_id = new_run_id("a" * 64)
    create(home, run_id)
    assert run_ids(home) == [run_id]
    assert find(home, "a" * 64).id == run_id
