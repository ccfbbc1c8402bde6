from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.record.manifest import commit_manifest
from windlass.runs import retention
from windlass.runs.metrics import MetricPoint
from windlass.runs.retention import choose, held_checkpoints, readers
from windlass.runs.store import RunFolder
from windlass.spec import Best, KeptCheckpoints
from windlass.supervise.remote.checkpoint_files import CheckpointFiles, newest_intact


def held(*steps: int) -> list[CheckpointFiles]:
    return [
        CheckpointFiles(path=Path(f"/c/step-{step}"), step=step, at=float(step), is_committed=True) for step in steps
    ]


def kept(found: list[CheckpointFiles], rule: KeptCheckpoints, series: list[MetricPoint], **more: object) -> list[int]:
    return [each.held.step for each in choose(found, rule, series, **more) if each.is_kept]  # type: ignore[arg-type]


def losses(*values: float) -> list[MetricPoint]:
    return [MetricPoint(step, value, float(step)) for step, value in enumerate(values, start=1)]


def test_without_a_rule_all_stay() -> None:
    assert kept(held(1, 2, 3), KeptCheckpoints(), []) == [1, 2, 3]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (KeptCheckpoints(last=2), [5, 6]),
        (KeptCheckpoints(last=9), [1, 2, 3, 4, 5, 6]),
        (KeptCheckpoints(best=Best(metric="loss")), [3]),
        (KeptCheckpoints(best=Best(metric="loss", keep=2)), [2, 3]),
        (KeptCheckpoints(best=Best(metric="loss", mode="max", keep=2)), [1, 6]),
        (KeptCheckpoints(last=1, best=Best(metric="loss", keep=1)), [3, 6]),
    ],
)
def test_last_and_best_stay_and_nothing_else(rule: KeptCheckpoints, expected: list[int]) -> None:
    assert kept(held(1, 2, 3, 4, 5, 6), rule, losses(9, 2, 1, 3, 4, 8)) == expected


def test_of_equal_values_the_later_checkpoint_is_the_better() -> None:
    assert kept(held(1, 2, 3), KeptCheckpoints(best=Best(metric="loss")), losses(1, 1, 5)) == [2]


def test_a_checkpoint_has_the_last_value_reported_by_its_step() -> None:
    series = [MetricPoint(2, 5.0, 0.0), MetricPoint(9, 1.0, 0.0), MetricPoint(11, 0.5, 0.0)]
    assert kept(held(1, 5, 10), KeptCheckpoints(best=Best(metric="loss")), series) == [10]


def test_a_value_that_is_no_number_is_never_the_best() -> None:
    assert kept(held(1, 2), KeptCheckpoints(best=Best(metric="x", mode="max")), losses(1, float("nan"))) == [1]


def test_a_metric_that_was_never_reported_removes_nothing() -> None:
    decisions = choose(held(1, 2, 3), KeptCheckpoints(last=1, best=Best(metric="los")), [])
    assert [each.why for each in decisions] == ["`los` was never reported"] * 2 + ["one of the last 1"]
    assert all(each.is_kept for each in decisions)


def test_what_somebody_needs_stays_whatever_the_rule_says() -> None:
    decisions = choose(held(1, 2), KeptCheckpoints(last=1), [], needed={Path("/c/step-1"): "x goes on from it"})
    assert [(each.is_kept, each.why) for each in decisions] == [
        (True, "x goes on from it"),
        (True, "one of the last 1"),
    ]


def test_what_goes_says_why() -> None:
    rule = KeptCheckpoints(last=1, best=Best(metric="loss", keep=1))
    assert choose(held(1, 2, 3), rule, losses(3, 1, 2))[0].why == "not among the last 1 or the best 1 by loss (min)"


def checkpoint(run: RunFolder, name: str, step: int) -> Path:
    path = run.checkpoints("train") / name
    path.mkdir(parents=True)
    (path / "w").write_text(f"{step}")
    commit_manifest(path, step=step, at=float(step))
    return path


def made(tmp_path: Path, pattern: str = "") -> RunFolder:
    run = RunScript(home_in(tmp_path), "exp-00000001").submit().start().end().close()
    plan = {"name": "exp", "tasks": [{"name": "train", "settings": {"checkpoint_pattern": pattern}}]}
    (run.path / "plan.json").write_text(json.dumps(plan))
    return run


def test_committed_folders_and_files_are_found_by_step(tmp_path: Path) -> None:
    run = made(tmp_path)
    checkpoint(run, "step-10", 10)
    checkpoint(run, "step-9", 9)
    file = run.checkpoints("train") / "best.pt"
    file.write_text("x")
    commit_manifest(file, step=11)
    (run.checkpoints("train") / "notes.txt").write_text("mine")
    (run.checkpoints("train") / ".windlass-1-0-7-new-step-12").mkdir()
    (run.checkpoints("train") / "gone.pt.manifest.json").write_text(file.with_name("best.pt.manifest.json").read_text())
    assert [(each.path.name, each.step) for each in held_checkpoints(run, "train")] == [
        ("step-9", 9),
        ("step-10", 10),
        ("best.pt", 11),
    ]


def test_checkpoints_of_other_code_are_found_by_the_pattern(tmp_path: Path) -> None:
    run = made(tmp_path, pattern="checkpoint-*")
    for step in (500, 1000):
        (run.checkpoints("train") / f"checkpoint-{step}").mkdir(parents=True)
    (run.checkpoints("train") / "checkpoint-last").mkdir()
    found = held_checkpoints(run, "train")
    assert [(each.step, each.is_committed) for each in found] == [(500, False), (1000, False)]


def test_the_newest_whole_one_is_not_the_torn_one(tmp_path: Path) -> None:
    run = made(tmp_path)
    checkpoint(run, "step-1", 1)
    torn = checkpoint(run, "step-2", 2)
    (torn / "w").write_text("other")
    found = newest_intact(held_checkpoints(run, "train"))
    assert found is not None
    assert found.step == 1


def test_without_reading_only_sizes_tell_a_torn_one(tmp_path: Path) -> None:
    run = made(tmp_path)
    checkpoint(run, "step-1", 1)
    changed = checkpoint(run, "step-2", 2)
    (changed / "w").write_bytes(b"x" * (changed / "w").stat().st_size)
    torn = checkpoint(run, "step-3", 3)
    os.truncate(torn / "w", 0)
    held = held_checkpoints(run, "train")
    assert [newest_intact(held, reads=reads) for reads in (False, True)] == [held[1], held[0]]


def test_readers_are_runs_whose_data_come_from_there(tmp_path: Path) -> None:
    home, run = home_in(tmp_path), made(tmp_path)
    for number, source in ((2, f"run:{run.id}/checkpoints/train/step-1"), (3, f"file:{run.path}/out/train")):
        user = RunScript(home, f"exp-0000000{number}").close()
        plan = {"name": "exp", "pins": {"data": {"x": {"source": source, "digest": "0"}}}}
        (user.path / "plan.json").write_text(json.dumps(plan))
        (user.path / "provenance.json").write_text(json.dumps({"base": os.fspath(tmp_path)}))
    who = readers(home)
    assert who(run, "checkpoints/train") == "exp-00000002"
    assert who(run, "out") == "exp-00000003"
    assert who(run, "checkpoints/other") == ""
    assert who(run, "") != ""


def test_what_was_removed_is_known_with_the_reason(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert retention.removed(run) == {}
    decisions = choose(held(1, 2), KeptCheckpoints(last=1))
    retention.note_removed(run, decisions[:1], at=1.0)
    assert retention.removed(run) == {"/c/step-1": "not among the last 1"}
