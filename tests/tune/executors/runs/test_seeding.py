from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError
from windlass.record.manifest import commit_manifest, differences, read_manifest
from windlass.runs.store import RunFolder
from windlass.tune.executors.runs.executor import seed


def made(folder: Path, name: str = "step-5") -> Path:
    path = folder / "runs/exp-aaaaaaaa/checkpoints/train" / name
    (path / "inner").mkdir(parents=True)
    (path / "state").write_text("five")
    (path / "inner/more").write_text("more")
    (path / "link").symlink_to("state")
    commit_manifest(path, step=5)
    return path


def test_a_clone_shares_the_bytes_and_is_whole(tmp_path: Path) -> None:
    source = made(tmp_path)
    run = RunFolder(tmp_path / "runs/exp-bbbbbbbb")
    target = seed(run, source, "other")
    assert target == run.checkpoints("train") / "step-5"
    assert differences(target, read_manifest(target)) == []
    assert read_manifest(target).step == 5
    assert os.stat(target / "state").st_ino == os.stat(source / "state").st_ino


def test_it_can_be_done_again(tmp_path: Path) -> None:
    source, run = made(tmp_path), RunFolder(tmp_path / "runs/exp-bbbbbbbb")
    assert seed(run, source, "train") == seed(run, source, "train")


def test_a_file_beside_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "model.pt"
    path.parent.mkdir()
    path.write_text("weights")
    commit_manifest(path, step=2)
    run = RunFolder(tmp_path / "runs/exp-bbbbbbbb")
    target = seed(run, path, "train")
    assert target == run.checkpoints("train") / "model.pt"
    assert differences(target, read_manifest(target)) == []


def test_bytes_are_copied_where_links_are_not_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    target = seed(RunFolder(tmp_path / "runs/exp-bbbbbbbb"), made(tmp_path), "train")
    assert differences(target, read_manifest(target)) == []


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        seed(RunFolder(tmp_path / "r"), tmp_path / "nothing", "train")
    assert caught.value.code == "no-checkpoint"
