"""Values of steps over one and several processes."""

from __future__ import annotations

import math

import pytest
import torch

from windlass.testing import run_distributed_test
from windlass.train.data.protocol import Share
from windlass.train.errors import TrainingError
from windlass.train.metrics import MetricStore, StepMetrics, refuse_bad_loss
from windlass.train.parallel.world import World

ALONE = World(device=torch.device("cpu"))


def as_dict(steps: list[StepMetrics]) -> dict[int, dict[str, float]]:
    return {entry.step: dict(entry.values) for entry in steps}


def test_values_come_back_by_step_and_only_once() -> None:
    store = MetricStore(ALONE)
    store.record(1, "loss", torch.tensor(2.5))
    store.record(1, "lr", 0.1, "none")
    store.record(2, "loss", torch.tensor(2.0, dtype=torch.bfloat16))
    store.record(2, "loss", 3)
    assert as_dict(store.collect()) == {1: {"loss": 2.5, "lr": 0.1}, 2: {"loss": 3.0}}
    assert store.collect() == []


def test_a_tensor_with_gradient_holds_no_graph() -> None:
    store = MetricStore(ALONE)
    weight = torch.ones((), requires_grad=True)
    store.record(1, "loss", weight * 2)
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in store._values)


def reduce_everywhere(world: World) -> dict[int, dict[str, float]]:
    store, mine = MetricStore(world), float(world.rank + 1)
    for name in ("mean", "sum", "max", "min", "none"):
        store.record(1, name, torch.tensor(mine) if name in ("mean", "max") else mine, name)
    store.record(2, "nan", math.nan if world.rank == 1 else 1.0, "max")
    return as_dict(store.collect())


def reduce_replicas(world: World) -> dict[int, dict[str, float]]:
    """Two processes that share their rows, as with tensor parallelism."""
    world.share = Share(rank=0, world=1)
    store = MetricStore(world)
    store.record(1, "train/loss", torch.tensor(3.0), "sum")
    return as_dict(store.collect())


def reduce_unlike(world: World) -> tuple[bool, dict[int, dict[str, float]]]:
    """Rank 1 lacks a name that rank 0 has, and the other way around."""
    store = MetricStore(world)
    store.record(1, "both", float(world.rank), "sum")
    store.record(1, f"only/{world.rank}", torch.tensor(7.0 + world.rank), "mean")
    digests = world.sum_on_host([store.digest, store.digest**2])
    return digests[1] * world.size == digests[0] ** 2, as_dict(store.collect(is_uniform=False))


def check_all(world: World) -> list[object]:
    return [reduce_everywhere(world), reduce_unlike(world), reduce_replicas(world)]


@pytest.mark.system
def test_values_are_reduced_over_processes_and_names_may_differ() -> None:
    for everywhere, unlike, replicas in run_distributed_test(check_all, num_processes=2):
        nan = everywhere[2].pop("nan")
        assert everywhere[1] == {"mean": 1.5, "sum": 3.0, "max": 2.0, "min": 1.0, "none": 1.0}
        assert math.isnan(nan)
        assert unlike == (False, {1: {"both": 1.0, "only/0": 7.0, "only/1": 8.0}})
        assert replicas == {1: {"train/loss": 3.0}}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_bad_loss_is_named(value: float) -> None:
    steps = [
        StepMetrics(step=3, values={"train/loss": 1.0}),
        StepMetrics(step=4, values={"train/loss": value, "speed/x": 1.0}),
    ]
    with pytest.raises(TrainingError, match=f"loss is {value} at step 4"):
        refuse_bad_loss(steps)
    refuse_bad_loss(steps[:1])
    refuse_bad_loss([StepMetrics(step=1, values={"other": math.nan})])
