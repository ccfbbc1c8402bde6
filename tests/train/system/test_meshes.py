"""A recipe on every mesh of two processes trains what one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.tiny import Diary
from tests.train.tiny_recipe import tiny_recipe
from windlass.testing import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.parallel.config import ParallelConfig, PipelineConfig
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

STEPS = 3
MESHES = {
    "ddp": ParallelConfig(data="ddp"),
    "fsdp": ParallelConfig(data="fsdp"),
    "tensor": ParallelConfig(tensor=2),
    "context": ParallelConfig(context=2),
    "pipeline": ParallelConfig(pipeline=PipelineConfig(stages=2)),
}


def losses(world: World, folder: Path, parallel: ParallelConfig) -> dict[int, float]:
    folder.mkdir(exist_ok=True)
    diary = Diary()
    rows = 128 // world.size if parallel.data != "auto" else 128
    trainer = build_trainer(tiny_recipe(folder, steps=STEPS, parallel=parallel, microbatch_tokens=rows), world)
    trainer.add_callback("diary", diary)
    trainer.fit()
    return {step: metrics["train/loss"] for step, metrics in diary.metrics.items()}


def on_all(world: World, folder: Path) -> dict[str, dict[int, float]]:
    found = {}
    for name, parallel in MESHES.items():
        own = World(rank=world.rank, size=world.size, local_rank=world.local_rank, device=world.device)
        world.barrier()
        found[name] = losses(own, folder / name, parallel)
    return found


def test_every_mesh_trains_the_same(tmp_path: Path) -> None:
    alone = losses(World(device=torch.device("cpu")), tmp_path / "alone", ParallelConfig())
    found, others = run_distributed_test(on_all, num_processes=2, args=(tmp_path,))
    assert sorted(alone) == [1, 2, 3]
    for name in MESHES:
        assert found[name] == pytest.approx(alone, rel=1e-6), name
        assert others[name] == {}, "metrics are told on rank 0"
