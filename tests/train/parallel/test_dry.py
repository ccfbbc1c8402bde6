"""Plans for 64 processes, applied in this one on a backend that only pretends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.train.parallel.shapes import DEEP, MOE, TINY
from windlass.core.errors import SpecError
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.parallel.config import ParallelConfig, PipelineConfig
from windlass.train.parallel.dry import dry_apply

P = ParallelConfig
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("config", "mesh"),
    [
        (P(data="ddp"), {"dp_replicate": 64}),
        (P(data="fsdp"), {"dp_shard": 64}),
        (P(data="hsdp", replicas=8), {"dp_replicate": 8, "dp_shard": 8}),
        (P(data="hsdp", replicas=4, tensor=2), {"dp_replicate": 4, "dp_shard": 8, "tp": 2}),
        (P(data="fsdp", context=4, tensor=2), {"dp_shard": 8, "cp": 4, "tp": 2}),
    ],
)
def test_64_processes_run_backward(config: ParallelConfig, mesh: dict[str, int]) -> None:
    facts = dry_apply(TINY, config, 64)
    assert (facts["mesh"], facts["ran_backward"]) == (mesh, True)
    assert not torch.distributed.is_initialized()


def test_experts_and_stages_divide_what_a_process_holds() -> None:
    whole = dry_apply(MOE, P(), 1)["parameters"]
    experts = MOE.num_layers * 3 * 4 * 20 * 24
    split = dry_apply(MOE, P(expert=4), 4)["parameters_of_process"]
    assert split == pytest.approx((int(str(whole)) - experts) / 4 + experts / 4, rel=0.02)
    first = dry_apply(DEEP, P(pipeline=PipelineConfig(stages=4)), 64)
    assert first["mesh"] == {"pp": 4, "dp_replicate": 16}
    assert int(str(first["parameters_of_process"])) < int(str(first["parameters"])) / 2


def test_a_large_model_takes_no_memory() -> None:
    attention = AttentionConfig(num_heads=64, num_kv_heads=8)
    large = ModelConfig(d_model=8192, num_layers=2, vocab_size=128_256, hidden=28_672, attention=attention)
    facts = dry_apply(large, P(data="hsdp", replicas=2, tensor=8), 64)
    assert facts["ran_backward"] is False
    assert facts["parameters_of_process"] == pytest.approx(int(str(facts["parameters"])) / 32, rel=0.01)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(SpecError, match="query heads"):
        dry_apply(replace(TINY), P(tensor=8), 64)
