"""A run goes on with another number of processes: the same rows, and in strict mode the same bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from tests.train.phases import run_phase
from tests.train.tiny_recipe import RowLog, rows_by_step, tensors_of, tiny_recipe
from windlass.testing import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.duration import Duration
from windlass.train.parallel.config import ParallelConfig, StrictConfig
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

Data: TypeAlias = Literal["ddp", "fsdp", "hsdp"]

SIZES: dict[Data, tuple[int, ...]] = {"fsdp": (1, 2, 4), "ddp": (4, 1, 2), "hsdp": (2, 4, 1)}


def go_on(folder: Path, data: Data, until: int, world: World) -> None:
    """Train from where the folder stands up to a step."""
    replicas = 2 if data == "hsdp" and world.size > 1 else 1
    parallel = ParallelConfig(data=data, replicas=replicas, strict=StrictConfig(shards=4))
    recipe = tiny_recipe(folder, steps=6, stop=Duration.steps(until), parallel=parallel)
    trainer = build_trainer(recipe, world)
    trainer.add_callback("rows", RowLog(str(folder / "rows")))
    assert trainer.fit().step == until


def run_all(world: World, parent: Path) -> None:
    assert run_phase(world, parent / "straight.store", 1, partial(go_on, parent / "straight", "ddp", 6)) == 0
    for data, sizes in SIZES.items():
        for place, size in enumerate(sizes):
            work = partial(go_on, parent / data, data, 2 * (place + 1))
            assert run_phase(world, parent / f"{data}-{size}.store", size, work) == 0


def test_rows_and_bits_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for name in ("straight", *SIZES):
        (tmp_path / name).mkdir()
    run_distributed_test(run_all, num_processes=4, args=(tmp_path,))

    expected = rows_by_step(tmp_path / "straight/rows")
    assert sorted(expected) == [1, 2, 3, 4, 5, 6]
    assert len({row for rows in expected.values() for row in rows}) == 6 * 4
    weights = tensors_of(tmp_path / "straight/checkpoints/step-6")
    assert len(weights) > 40
    for name in SIZES:
        assert rows_by_step(tmp_path / name / "rows") == expected, name
        assert tensors_of(tmp_path / name / "checkpoints/step-6") == weights, name
