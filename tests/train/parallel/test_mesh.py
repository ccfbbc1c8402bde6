"""The algebra of meshes: which sizes fit, and who takes which rows; no torch is needed for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.train.parallel.shapes import MOE, TINY
from windlass.core.errors import SpecError
from windlass.train.parallel.config import ParallelConfig, PipelineConfig, StrictConfig
from windlass.train.parallel.mesh import check_model, mesh_shape

P = ParallelConfig


@pytest.mark.parametrize(
    ("config", "world_size", "data", "axes"),
    [
        (P(), 1, "none", {}),
        (P(), 8, "ddp", {"dp_replicate": 8}),
        (P(data="fsdp"), 1, "none", {}),
        (P(data="fsdp"), 8, "fsdp", {"dp_shard": 8}),
        (P(data="hsdp", replicas=2), 8, "hsdp", {"dp_replicate": 2, "dp_shard": 4}),
        (P(data="hsdp", replicas=8), 8, "ddp", {"dp_replicate": 8}),
        (P(tensor=2), 8, "ddp", {"dp_replicate": 4, "tp": 2}),
        (P(data="fsdp", tensor=2, context=2), 16, "fsdp", {"dp_shard": 4, "cp": 2, "tp": 2}),
        (P(context=4), 4, "fsdp", {"cp": 4}),
        (P(expert=4), 8, "fsdp", {"dp_shard": 8}),
        (P(pipeline=PipelineConfig(stages=4)), 8, "ddp", {"pp": 4, "dp_replicate": 2}),
    ],
)
def test_sizes(config: ParallelConfig, world_size: int, data: str, axes: dict[str, int]) -> None:
    shape = mesh_shape(config, world_size)
    assert (shape.data, dict(shape.axes), shape.world_size) == (data, axes, world_size)


def test_auto_shards_large_models() -> None:
    assert mesh_shape(P(), 8, num_parameters=7_000_000_000).data == "fsdp"
    assert mesh_shape(P(), 8, num_parameters=200_000_000).data == "ddp"


@pytest.mark.parametrize(
    ("config", "world_size", "field"),
    [
        (P(tensor=3), 8, "parallel.tensor: 8 processes"),
        (P(tensor=2, context=4), 12, "parallel.context: 12 processes"),
        (P(data="hsdp", replicas=3), 8, "parallel.replicas: 8 data-parallel"),
        (P(replicas=2), 8, "parallel.replicas: 2 replicas need `data: hsdp`"),
        (P(expert=3), 8, "parallel.expert: 3 does not divide"),
        (P(strict=StrictConfig(shards=4)), 8, "parallel.strict.shards: 4 is not a multiple"),
        (P(strict=StrictConfig(), tensor=2), 4, "parallel.tensor 2"),
        (P(data="fsdp", pipeline=PipelineConfig(stages=2)), 4, "parallel.pipeline.stages: 2 stages with `data: fsdp`"),
    ],
)
def test_misfits_name_their_field(config: ParallelConfig, world_size: int, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        mesh_shape(config, world_size)
    assert any(field in problem.message for problem in caught.value.problems)
    assert all(problem.hint for problem in caught.value.problems)


def test_every_row_is_taken_once_and_partners_take_the_same() -> None:
    shape = mesh_shape(P(data="hsdp", replicas=2, tensor=2, context=2), 16)
    shares = [shape.share(rank) for rank in range(16)]
    assert {share.world for share in shares} == {4}
    assert [share.rank for share in shares] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    stages = mesh_shape(P(pipeline=PipelineConfig(stages=2)), 8)
    assert [stages.share(rank).rank for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_what_a_model_does_not_divide_by() -> None:
    def found(config: ParallelConfig, **changes: object) -> list[str]:
        return [problem.message for problem in check_model(config, replace(TINY, **changes), sequence_length=16)]  # type: ignore[arg-type]

    assert found(P(tensor=2)) == []
    assert any("key and value heads" in message for message in found(P(tensor=4)))
    assert any("vocabulary" in message for message in found(P(tensor=2), vocab_size=91))
    assert any("tokens of a row" in message for message in found(P(context=3)))
    assert any("tied embedding" in message for message in found(P(pipeline=PipelineConfig(stages=2)), is_tied=True))
    assert any("has no experts" in message for message in found(P(expert=2)))
    assert any("groups" in m for m in found(P(pipeline=PipelineConfig(stages=2, schedule="interleaved"))))
    assert any("3" in problem.message for problem in check_model(P(expert=3), MOE))


def test_the_algebra_imports_no_torch() -> None:
    code = "import sys, windlass.train.parallel.mesh, windlass.train.parallel.config; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
