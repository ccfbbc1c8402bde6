from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import Job
from windlass import report
from windlass.core.errors import NotFoundError
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.record.manifest import commit_manifest
from windlass.report import channel, checkpoints
from windlass.report.checkpoints import begin_saving, saving_ended


def save(step: int, content: bytes = b"weights") -> None:
    with report.checkpoint_dir(step=step) as folder:
        (folder / "shards").mkdir()
        (folder / "shards" / "0.pt").write_bytes(content * (step + 1))
        (folder / "step.txt").write_text(str(step))


def test_a_folder_is_committed_and_found_by_the_next_process(job: Job) -> None:
    save(100)
    job.restart()
    assert report.latest_checkpoint() == job.checkpoints / "step-100"
    (record,) = job.records(events.CHECKPOINT)
    assert record.data["path"] == str(job.checkpoints / "step-100")
    assert (record.data["task"], record.data["attempt"], record.data["rank"], record.data["step"]) == (
        "train",
        2,
        1,
        100,
    )
    assert record.data["phase_s"] >= 0


@pytest.mark.parametrize("is_made_by_us", [True, False], ids=["checkpoint_dir", "checkpoint"])
def test_what_was_reported_before_it_is_on_the_disk_before_it(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_by_us: bool
) -> None:
    """What goes on from a checkpoint never reports the steps before it again, so a kill may not lose them."""
    monkeypatch.setattr(channel, "FLUSH_EVERY_S", 600.0)
    seen: list[int] = []

    def look(*arguments: Any, **named: Any) -> object:
        seen.extend(record.data["step"] for record in read_journal(job.journal) if record.kind == events.METRICS)
        return commit_manifest(*arguments, **named)

    monkeypatch.setattr(checkpoints, "commit_manifest", look)
    report.metrics({"loss": 1.0}, step=1)
    report.metrics({"loss": 0.5}, step=2)
    if is_made_by_us:
        save(2)
    else:
        (tmp_path / "w").write_text("w")
        report.checkpoint(tmp_path / "w", step=2)
    assert seen == [1, 2]


def test_the_newest_is_the_one_of_the_highest_step(job: Job) -> None:
    for step in (9, 100, 20):
        save(step)
    assert report.latest_checkpoint() == job.checkpoints / "step-100"


def test_a_file_anywhere_may_be_a_checkpoint(job: Job, tmp_path: Path) -> None:
    where = tmp_path / "elsewhere" / "model.bin"
    where.parent.mkdir()
    where.write_bytes(b"x" * 100)
    assert report.checkpoint(where, step=5) == where
    assert json.loads((where.parent / "model.bin.manifest.json").read_text())["files"][0]["size"] == 100
    job.restart()
    assert report.latest_checkpoint() == where


def test_folder_names_follow_the_pattern_of_the_task(job: Job) -> None:
    job.set(CHECKPOINT_PATTERN="step_*")
    save(3)
    assert report.latest_checkpoint() == job.checkpoints / "step_3"
    job.set(CHECKPOINT_PATTERN="[ab]*/x")
    save(4)
    assert report.latest_checkpoint() == job.checkpoints / "step-4"


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("shards/0.pt")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped bit": (_flip, "shards/0.pt"),
    "torn file": (_cut, "shards/0.pt"),
    "missing file": (Path.unlink, "step.txt"),
    "torn manifest": (_cut, "manifest.json"),
    "flipped manifest": (_flip, "manifest.json"),
    "no manifest": (Path.unlink, "manifest.json"),
    "a link to another": (_link, "step.txt"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_one_is_passed_over_for_the_one_before(job: Job, name: str) -> None:
    save(1)
    save(2)
    damage, file = DAMAGE[name]
    damage(job.checkpoints / "step-2" / file)
    job.restart()
    assert report.latest_checkpoint() == job.checkpoints / "step-1"


def test_none_when_all_are_damaged_or_there_is_none(job: Job) -> None:
    assert report.latest_checkpoint() is None
    save(1)
    _flip(job.checkpoints / "step-1" / "shards" / "0.pt")
    assert report.latest_checkpoint() is None


def test_none_when_the_task_does_not_resume(job: Job) -> None:
    save(1)
    job.set(RESUME="0")
    assert report.latest_checkpoint() is None


def test_a_folder_without_commit_is_never_resumed_from(job: Job) -> None:
    (job.checkpoints / "step-9").mkdir(parents=True)
    (job.checkpoints / "step-9" / "w").write_bytes(b"half")
    assert report.latest_checkpoint() is None


def test_one_whose_record_was_lost_is_still_found(job: Job) -> None:
    save(1)
    job.restart()
    for file in job.journal.iterdir():
        file.unlink()
    assert report.latest_checkpoint() == job.checkpoints / "step-1"


def _save_half() -> None:
    with report.checkpoint_dir(step=1) as folder:
        (folder / "w").write_bytes(b"half")
        raise ZeroDivisionError


def test_an_error_in_the_block_leaves_nothing(job: Job) -> None:
    with pytest.raises(ZeroDivisionError):
        _save_half()
    assert list(job.checkpoints.iterdir()) == []
    assert job.records(events.CHECKPOINT) == []


def test_saving_the_same_step_again_replaces_it(job: Job) -> None:
    save(1, b"old")
    save(1, b"newer")
    assert [entry.name for entry in job.checkpoints.iterdir()] == ["step-1"]
    assert (job.checkpoints / "step-1" / "shards" / "0.pt").read_bytes() == b"newernewer"
    assert report.latest_checkpoint() == job.checkpoints / "step-1"


@pytest.mark.parametrize("moment", ["before the first rename", "between the renames"])
def test_a_kill_while_replacing_loses_nothing(job: Job, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    save(1)
    real, left = os.rename, [0 if moment == "before the first rename" else 1]

    def dying(source: str, target: str) -> None:
        if left[0] == 0:
            os._exit(0)
        left[0] -= 1
        real(source, target)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "rename", dying)
        save(1)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    job.restart()
    found = report.latest_checkpoint()
    assert found is not None
    assert (found / "step.txt").read_text() == "1"


def test_leftovers_of_killed_attempts_go_with_the_next_save(job: Job) -> None:
    leftover = job.checkpoints / ".windlass-1-0-77-new-step-5"
    living = job.checkpoints / ".windlass-2-3-78-new-step-5"
    for folder in (leftover, living):
        folder.mkdir(parents=True)
    save(6)
    assert not leftover.exists()
    assert living.exists()


def test_nothing_at_the_path(job: Job, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file or folder: .*/nowhere"):
        report.checkpoint(tmp_path / "nowhere", step=1)


def test_a_journal_that_cannot_be_written_is_told(job: Job, tmp_path: Path) -> None:
    job.journal.write_text("in the way")
    (tmp_path / "w").write_bytes(b"1")
    with pytest.raises(OSError):
        report.checkpoint(tmp_path / "w", step=1)


def test_outside_windlass_a_folder_still_appears_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(7)
    assert (tmp_path / "checkpoints" / "step-7" / "step.txt").read_text() == "7"
    (tmp_path / "w").write_bytes(b"1")
    assert report.checkpoint(tmp_path / "w", step=1) == tmp_path / "w"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints", "w"]


def test_a_million_metrics_do_not_hide_a_checkpoint(job: Job, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"1")
    for step in range(200):
        report.metrics({'a "kind":"checkpoint" b': 1.0}, step=step)
    report.checkpoint(tmp_path / "w", step=3)
    job.restart()
    assert report.latest_checkpoint() == tmp_path / "w"


def test_the_time_of_a_save_counts_from_its_announcement(
    job: Job, monotonic: Callable[[float], None], tmp_path: Path
) -> None:
    (tmp_path / "w").write_bytes(b"1")
    report.progress("save")
    monotonic(12.5)
    report.checkpoint(tmp_path / "w", step=3)
    assert job.records(events.CHECKPOINT)[0].data["phase_s"] == 12.5


def test_a_checkpoint_whose_maker_wrote_the_manifest_is_only_recorded(job: Job) -> None:
    job.control(checkpoint=1)
    assert report.should_checkpoint()
    saving = begin_saving()
    job.control(checkpoint=2)  # asked while saving: this save may hold older state
    saving_ended(saving, "s3://bucket/step-7", step=7)
    (record,) = job.records(events.CHECKPOINT)
    assert (record.data["path"], record.data["step"]) == ("s3://bucket/step-7", 7)
    assert report.should_checkpoint()
    saving_ended(begin_saving(), "s3://bucket/step-8", step=8)
    assert not report.should_checkpoint()
