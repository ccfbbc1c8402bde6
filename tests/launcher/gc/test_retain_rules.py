from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runs.journals import RunScript
from windlass.core.clock import FakeClock
from windlass.launcher.gc import retain_rules
from windlass.launcher.gc.removable import Kept, Removal, remove
from windlass.launcher.gc.retain_rules import enforce, half_removed, retained
from windlass.record.manifest import commit_manifest
from windlass.runs.archive.origin import write_import_facts
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

DAY = 86400.0
LAST_ONE = {"checkpoints": {"last": 1}}


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-made runs have no plan that a backend could be asked about."""
    monkeypatch.setattr(retain_rules, "has_processes", lambda run: False)
    monkeypatch.setattr("windlass.launcher.gc.removable.has_processes", lambda run: False)


def run_of(
    home: Home, retain: dict[str, Any], verdict: str = "succeeded", number: int = 1, num_saved: int = 3
) -> RunFolder:
    script = RunScript(home, f"exp-0000000{number}").submit().start()
    for step in range(1, num_saved + 1):
        script.metric("loss", step, float((step - 2) ** 2))
    cause = {"succeeded": "ok", "failed": "user-error", "stopped": "cancelled"}.get(verdict)
    run = (script.end(verdict, cause) if cause else script).close()
    plan = {"name": "exp", "experiment": {"retain": retain}, "tasks": [{"name": "train"}]}
    (run.path / "plan.json").write_text(json.dumps(plan))
    for step in range(1, num_saved + 1):
        path = run.checkpoints("train") / f"step-{step}"
        path.mkdir(parents=True)
        (path / "w").write_text(f"{step}" * 100)
        commit_manifest(path, step=step, at=float(step))
    return run


def steps(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.checkpoints("train").iterdir())


def carry_out(home: Home, now: float | None = None) -> list[str]:
    due = [each for each in retained(home, now) if isinstance(each, Removal)]
    return [each.path.name for each in due if enforce(each, home)]


@pytest.mark.parametrize(
    ("retain", "left"),
    [
        ({}, [1, 2, 3]),
        (LAST_ONE, [3]),
        ({"checkpoints": {"best": {"metric": "loss"}}}, [2]),
        ({"checkpoints": {"last": 1, "best": {"metric": "loss"}}}, [2, 3]),
        ({"checkpoints": {"last": 1, "best": {"metric": "lss"}}}, [1, 2, 3]),
    ],
)
def test_exactly_the_right_checkpoints_remain(home: Path, retain: dict[str, Any], left: list[int]) -> None:
    run = run_of(Home(home), retain)
    carry_out(Home(home))
    assert steps(run) == [f"step-{step}" for step in left]
    assert carry_out(Home(home)) == []


def test_telling_changes_nothing(home: Path) -> None:
    run = run_of(Home(home), LAST_ONE)
    told = list(retained(Home(home)))
    assert [(type(each), each.path.name) for each in told] == [
        (Removal, "step-1"),
        (Removal, "step-2"),
        (Kept, "step-3"),
    ]
    assert all(each.num_bytes > 0 and each.why for each in told if isinstance(each, Removal))
    assert steps(run) == ["step-1", "step-2", "step-3"]


def test_a_run_in_motion_is_left_alone(home: Path) -> None:
    run = run_of(Home(home), {**LAST_ONE, "ttl": "1s"}, verdict="")
    assert list(retained(Home(home))) == []
    (due,) = [
        Removal(kind="checkpoint", path=run.checkpoints("train") / "step-1", num_bytes=1, run=run.id, task="train"),
    ]
    assert not enforce(due, Home(home))
    assert len(steps(run)) == 3


@pytest.mark.parametrize("verdict", ["failed", "stopped"])
def test_what_a_run_goes_on_from_stays_whatever_is_best(home: Path, verdict: str) -> None:
    run = run_of(Home(home), {"checkpoints": {"best": {"metric": "loss"}}}, verdict)
    carry_out(Home(home))
    assert steps(run) == ["step-2", "step-3"]


def test_a_run_goes_on_from_the_newest_whole_one(home: Path) -> None:
    run = run_of(Home(home), LAST_ONE, "failed")
    (run.checkpoints("train") / "step-3" / "w").write_text("torn")
    carry_out(Home(home))
    assert steps(run) == ["step-2", "step-3"]


def test_a_resume_between_telling_and_removing_wins(home: Path) -> None:
    run = run_of(Home(home), LAST_ONE, "stopped")
    due = [each for each in retained(Home(home)) if isinstance(each, Removal)]
    script = RunScript.__new__(RunScript)
    script.clock, script.task, script.run = FakeClock(1_800_000_000.0), "train", run
    from windlass.record.journal import JournalWriter

    script.client = JournalWriter(run.journal, "client-2", script.clock)
    script.submit(2)
    script.client.close()
    assert [enforce(each, Home(home)) for each in due] == [False, False]
    assert len(steps(run)) == 3


def test_checkpoints_that_another_run_reads_stay(home: Path) -> None:
    run = run_of(Home(home), LAST_ONE)
    user = run_of(Home(home), {}, number=2)
    plan = {"name": "exp", "pins": {"data": {"x": {"source": f"run:{run.id}/checkpoints/train/step-1"}}}}
    (user.path / "plan.json").write_text(json.dumps(plan))
    (user.path / "provenance.json").write_text("{}")
    assert {each.why for each in retained(Home(home))} == {f"{user.id} reads data from it"}
    assert carry_out(Home(home)) == []


def test_a_run_goes_after_its_time_and_not_before(home: Path) -> None:
    run = run_of(Home(home), {"ttl": "1d"})
    ended_at = run.facts().ended_at
    assert list(retained(Home(home), ended_at + DAY - 1)) == []
    (due,) = retained(Home(home), ended_at + DAY)
    assert isinstance(due, Removal)
    assert due.why == "ended 1d ago, retain.ttl=1d"
    assert carry_out(Home(home), ended_at + DAY) == [run.id]
    assert not run.path.exists()


def test_a_run_whose_output_another_reads_outlives_its_time(home: Path) -> None:
    run = run_of(Home(home), {"ttl": "1d"})
    user = run_of(Home(home), {}, number=2)
    plan = {"name": "exp", "pins": {"data": {"x": {"source": f"file:{run.out('train')}"}}}}
    (user.path / "plan.json").write_text(json.dumps(plan))
    (user.path / "provenance.json").write_text(json.dumps({"base": "/"}))
    (told,) = retained(Home(home), run.facts().ended_at + 9 * DAY)
    assert isinstance(told, Kept)
    assert told.why == f"{user.id} reads data from it"


def test_the_time_of_an_imported_run_begins_with_its_import(home: Path) -> None:
    run = run_of(Home(home), {"ttl": "1d"})
    at = run.facts().ended_at + 100 * DAY
    write_import_facts(run.path, {"at": at, "digest": "d"})
    assert list(retained(Home(home), at + DAY - 1)) == []
    assert len(list(retained(Home(home), at + DAY))) == 1


def test_a_removal_that_was_cut_off_is_finished_by_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(Home(home), LAST_ONE)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retain_rules, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            carry_out(Home(home))
    assert [name for name in steps(run) if not name.startswith(".")] == ["step-2", "step-3"]
    (left,) = half_removed(Home(home))
    assert remove(left, Home(home))
    assert steps(run) == ["step-2", "step-3"]
    assert carry_out(Home(home)) == ["step-2"]


def test_a_file_goes_with_its_manifest(home: Path) -> None:
    run = run_of(Home(home), LAST_ONE, num_saved=1)
    file = run.checkpoints("train") / "zero.pt"
    file.write_text("0")
    commit_manifest(file, step=0)
    carry_out(Home(home))
    assert steps(run) == ["step-1"]


def test_a_manifest_that_was_left_alone_goes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(Home(home), LAST_ONE, num_saved=1)
    file = run.checkpoints("train") / "zero.pt"
    file.write_text("0")
    commit_manifest(file, step=0)
    (due,) = [each for each in retained(Home(home)) if isinstance(each, Removal)]
    with monkeypatch.context() as patch:
        patch.setattr(retain_rules, "move_to_trash", lambda path, folder: path.unlink())
        enforce(due, Home(home))
    (left,) = half_removed(Home(home))
    assert left.path.name == "zero.pt.manifest.json"
    remove(left, Home(home))
    assert steps(run) == ["step-1"]


def test_rules_that_cannot_be_read_keep_the_run(home: Path) -> None:
    run_of(Home(home), {"ttl": "soon"})
    (told,) = retained(Home(home))
    assert isinstance(told, Kept)
    assert "soon" in told.why
