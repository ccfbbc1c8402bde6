"""A full disk costs the checkpoint that did not fit, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from windlass.train.checkpoint.store import open_store
from windlass.train.errors import CheckpointError
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system


@pytest.fixture
def small_disk(tmp_path: Path, need: Callable[[str], None]) -> Iterator[Path]:
    """A file system of 1 MiB."""
    need("tmpfs")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((100_000,), float(value))}}


@pytest.mark.parametrize("is_async", [False, True])
def test_what_did_not_fit_is_said_and_the_rest_stays(small_disk: Path, is_async: bool) -> None:
    store = open_store(str(small_disk / "checkpoints"), World(device=torch.device("cpu")))

    def save(step: int) -> str:
        return (
            store.save(state(step), {}, step=step, tokens=0, config={}, is_permanent=True, is_async=is_async)
            .wait()
            .path
        )

    first, second = save(1), save(2)
    problem = r"step 3 was not saved: rank 0: .*/model-00000\.safetensors: No space left on device"
    with pytest.raises(CheckpointError, match=problem) as caught:
        save(3)
    assert caught.value.code == "checkpoint-folder"
    assert isinstance(caught.value.__cause__, OSError)
    assert sorted(os.listdir(store.path)) == ["step-1", "step-2"]
    found = state(0)
    store.load(second, found)
    assert found["model"]["w"][-1] == 2
    store.drop(first)
    assert save(3).endswith("step-3")


def test_an_error_nobody_waited_for_comes_with_the_next_call(small_disk: Path) -> None:
    store = open_store(str(small_disk / "checkpoints"), World(device=torch.device("cpu")))
    big = {"model": {"w": torch.zeros(1_000_000)}}
    store.save(big, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=True)
    with pytest.raises(CheckpointError, match="step 1 was not saved"):
        store.committed()
    assert store.committed() == []
