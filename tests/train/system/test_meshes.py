"""A recipe on every mesh of two processes trains what one process does, and finds the same when it evaluates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.narrow import data_of
from tests.train.tiny import Diary
from tests.train.tiny_recipe import tiny_recipe
from windlass.testing import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.callbacks.config import GradientsConfig, LMEvalConfig
from windlass.train.duration import Duration
from windlass.train.optim.config import AdamWConfig, GroupConfig
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


def losses(world: World, folder: Path, parallel: ParallelConfig) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    diary = Diary()
    rows = 128 // world.size if parallel.data != "auto" else 128
    groups = (GroupConfig(match=("head.*", "norm.*"), weight_decay=0.0), GroupConfig(match=("embed.*",), lr=1e-3))
    optim = AdamWConfig(lr=1e-2, groups=groups)
    recipe = tiny_recipe(folder, steps=STEPS, parallel=parallel, microbatch_tokens=rows, optim=optim)
    norms = GradientsConfig(every=1, match=("blocks.1.*",))
    held = LMEvalConfig(
        sources={"own": data_of(recipe).sources[0]}, every=Duration.steps(2), at_start=True, max_tokens=288
    )
    trainer = build_trainer(replace(recipe, callbacks={**recipe.callbacks, "held": held, "norms": norms}), world)
    trainer.add_callback("diary", diary)
    trainer.fit()
    told = ("train/loss", "eval/own/loss", "gradients/blocks.1.ffn.up.weight")
    return {
        f"{step} {name}": metrics[name] for step, metrics in diary.metrics.items() for name in told if name in metrics
    }


def on_all(world: World, folder: Path) -> dict[str, dict[str, float]]:
    found = {}
    for name, parallel in MESHES.items():
        own = World(rank=world.rank, size=world.size, local_rank=world.local_rank, device=world.device)
        world.barrier()
        found[name] = losses(own, folder / name, parallel)
    return found


def test_every_mesh_trains_and_evaluates_the_same(tmp_path: Path) -> None:
    alone = losses(World(device=torch.device("cpu")), tmp_path / "alone", ParallelConfig())
    found, others = run_distributed_test(on_all, num_processes=2, args=(tmp_path,))
    trained = [f"{step} {name}" for step in (1, 2, 3) for name in ("train/loss", "gradients/blocks.1.ffn.up.weight")]
    assert sorted(alone) == sorted([*trained, *(f"{step} eval/own/loss" for step in (0, 2, 3))])
    for name in MESHES:
        assert found[name] == pytest.approx(alone, rel=1e-6), name
        assert others[name] == {}, "metrics are told on rank 0"
