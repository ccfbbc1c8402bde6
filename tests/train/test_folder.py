"""The folder of checkpoints is looked at before training begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from windlass.core.errors import PreconditionError
from windlass.train.build import checkpoint_folder, ensure_folder
from windlass.train.parallel.world import World

ALONE = World(device=torch.device("cpu"))


def test_it_is_made_and_left_empty(tmp_path: Path) -> None:
    ensure_folder(str(tmp_path / "a" / "b"), ALONE, need_bytes=10)
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match=f"cannot write checkpoints to {tmp_path}/file/x") as error:
        ensure_folder(str(tmp_path / "file" / "x"), ALONE, need_bytes=1)
    assert error.value.code == "checkpoint-folder"


def test_a_disk_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"free; one checkpoint takes 888178.4 PiB") as error:
        ensure_folder(str(tmp_path), ALONE, need_bytes=10**21)
    assert error.value.code == "checkpoint-folder"


def test_urls_are_left_to_the_store() -> None:
    ensure_folder("s3://bucket/run", ALONE, need_bytes=10**30)


def test_the_folder_of_a_run_is_below_the_working_directory_unless_named() -> None:
    assert checkpoint_folder("", "first") == "checkpoints/first"
    assert checkpoint_folder("s3://b/x", "first") == "s3://b/x"
