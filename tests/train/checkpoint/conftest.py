"""One process's store in a fresh folder, and small states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.parallel.world import World


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return open_store(str(tmp_path / "checkpoints"), World(device=torch.device("cpu")))


def state(seed: int = 0) -> dict[str, Any]:
    """A model of two weights and its optimiser."""
    generator = torch.Generator().manual_seed(seed)
    weight, norm = torch.randn((5, 4), generator=generator), torch.randn(3, generator=generator)
    return {
        "model": {"head.weight": weight, "norm.weight": norm.to(torch.bfloat16)},
        "optim": {"head.weight.exp_avg": weight * 2, "head.weight.step": torch.tensor(float(seed)), "lr": 0.5},
    }


def save(store: FolderStore, step: int, *, is_permanent: bool = True, is_async: bool = False) -> Committed:
    """The state of that seed, as the checkpoint of that step."""
    pending = store.save(
        state(step),
        {"epoch": step},
        step=step,
        tokens=64 * step,
        config={"name": "x"},
        is_permanent=is_permanent,
        is_async=is_async,
    )
    return pending.wait()


def is_equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two states are the same, bit by bit."""
    return all(
        torch.equal(value, right[section][name]) if isinstance(value, torch.Tensor) else value == right[section][name]
        for section, part in left.items()
        for name, value in part.items()
    )
