"""The estimate beside the plan as it is applied: process 0 of 64 on torch's fake backend, in this process."""

from __future__ import annotations

import pytest

from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.page import plan_page
from windlass.train.plan.plan import plan_recipe
from windlass.train.resolve import resolve

SMALL = (
    "model.d_model=64",
    "model.num_layers=2",
    "model.hidden=192",
    "model.attention.num_heads=8",
    "model.vocab_size=512",
    "data.batch_tokens=8192",
)


@pytest.mark.parametrize(
    ("world", "overrides", "mesh"),
    [
        (64, ("parallel.data=fsdp",), {"dp_shard": 64}),
        (64, ("parallel.data=hsdp", "parallel.replicas=8"), {"dp_replicate": 8, "dp_shard": 8}),
        (64, ("parallel.data=fsdp", "parallel.tensor=2"), {"dp_shard": 32, "tp": 2}),
        (64, ("parallel.data=ddp",), {"dp_replicate": 64}),
        (
            64,
            ("parallel.data=hsdp", "parallel.replicas=4", "parallel.tensor=2"),
            {"dp_replicate": 4, "dp_shard": 8, "tp": 2},
        ),
        (1, (), {}),
    ],
)
def test_weights_of_a_process_are_as_estimated(world: int, overrides: tuple[str, ...], mesh: dict[str, int]) -> None:
    recipe = resolve("tiny", [*SMALL, *overrides]).recipe
    plan = plan_recipe(recipe, MachineSpec(world=world))
    assert plan.applied.note == ""
    assert (dict(plan.shape.axes), plan.applied.facts["mesh"]) == (mesh, mesh)
    assert plan.applied.facts["parameters"] == plan.parameters.total
    assert plan.applied.facts["ran_backward"] is True
    # Norms are whole on each process of a tensor-parallel group; rows that do not divide are padded.
    assert plan.applied.facts["bytes_of_process"] == pytest.approx(plan.memory.weights, rel=0.03)
    assert "in this process" in "\n".join(plan_page(plan))


def test_a_large_model_is_applied_without_memory() -> None:
    plan = plan_recipe(resolve("olmo2-1b", ["model.num_layers=2"]).recipe, MachineSpec(world=64))
    assert plan.applied.facts["ran_backward"] is False
    assert list(plan_page(plan))[-1] == "  computed      nothing: the model is too large for it"
    assert plan.applied.facts["bytes_of_process"] == pytest.approx(plan.memory.weights, rel=0.01)


def test_a_stage_is_applied_and_not_computed() -> None:
    staged = ("model.is_tied=false", "parallel.pipeline.stages=2")
    plan = plan_recipe(resolve("tiny", [*SMALL, *staged]).recipe, MachineSpec(world=2))
    assert plan.applied.facts["ran_backward"] is False
    assert list(plan_page(plan))[-1] == "  computed      nothing: one stage alone has no loss"
