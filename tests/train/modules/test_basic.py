"""Any module with a loss: one process, several, and what the loss is divided by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.train.tiny import QUIET, Diary, LatePointLoader, PointLoader, point_loss, point_model, point_module
from windlass.testing import run_distributed_test
from windlass.train.duration import Duration
from windlass.train.modules.basic import BasicModule
from windlass.train.modules.protocol import StepFacts
from windlass.train.parallel.world import World
from windlass.train.trainer import Trainer

FACTS = StepFacts(step=1, tokens=0, total_weight=8.0, lr_factor=1.0)


def test_gradients_are_those_of_the_mean() -> None:
    module, reference = point_module(), point_model()
    batch = next(iter(PointLoader()))
    metrics = module.train_batch(batch, FACTS)
    loss = nn.functional.cross_entropy(reference(batch[0]), batch[1])
    loss.backward()
    assert torch.allclose(metrics["loss"], loss)
    for ours, theirs in zip(module.model.parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-7)


def test_the_learning_rate_follows_the_schedule_and_gradients_are_bounded() -> None:
    model = point_model()
    before = [weight.detach().clone() for weight in model.parameters()]
    module = BasicModule(model, torch.optim.SGD(model.parameters(), lr=2.0), point_loss, max_grad_norm=0.5)
    module.train_batch(next(iter(PointLoader())), FACTS)
    norm = module.optim_step(StepFacts(step=1, tokens=0, total_weight=8.0, lr_factor=0.25))["grad_norm"]
    moved = torch.cat([(after - old).flatten() for after, old in zip(model.parameters(), before, strict=True)]).norm()
    assert moved.item() == pytest.approx(2.0 * 0.25 * min(0.5, norm.item()), rel=1e-4)


@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 2), [torch.zeros(3, 2)], {"x": torch.zeros(3, 2)}, ((torch.zeros(3),), 1)]
)
def test_samples_are_counted_in_any_batch(batch: object) -> None:
    model = point_model()
    module: BasicModule[object] = BasicModule(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: (torch.zeros(()), 1.0))  # fmt: skip
    assert module.count(batch) == 3
    assert module.weigh(batch) == 3.0


def test_a_weight_of_ones_own_is_what_the_loss_is_divided_by() -> None:
    model, diary = point_model(), Diary()
    module = BasicModule(model, torch.optim.SGD(model.parameters(), lr=0.0), point_loss, weigh=lambda batch: 2.0)
    Trainer(module, PointLoader(), duration=Duration.steps(1), callbacks={**QUIET, "diary": diary}).fit()
    plain = Diary()
    Trainer(point_module(), PointLoader(), duration=Duration.steps(1), callbacks={**QUIET, "diary": plain}).fit()
    assert diary.metrics[1]["train/loss"] == pytest.approx(4 * plain.metrics[1]["train/loss"])


def test_dropout_follows_from_seed_and_step_alone() -> None:
    losses = []
    for noise in (1, 2):
        module = point_module(dropout=0.5)
        torch.manual_seed(noise)
        losses.append(module.train_batch(next(iter(PointLoader())), FACTS)["loss"].item())
    other = point_module(dropout=0.5).train_batch(
        next(iter(PointLoader())), StepFacts(step=2, tokens=0, total_weight=8.0, lr_factor=1.0)
    )
    assert losses[0] == losses[1] != other["loss"].item()


def train_points(world: World) -> tuple[list[float], dict[int, dict[str, float]]]:
    diary = Diary()
    trainer = Trainer(
        point_module(world),
        LatePointLoader(waits=3 * world.rank, share=world.share),
        duration=Duration.steps(4),
        callbacks={**QUIET, "diary": diary},
        world=world,
    )
    trainer.fit()
    return [value for weight in trainer.module.model.parameters() for value in weight.flatten().tolist()], diary.metrics


@pytest.mark.system
def test_two_processes_train_what_one_does() -> None:
    weights, metrics = train_points(World(device=torch.device("cpu")))
    (first, told), (second, silent) = run_distributed_test(train_points, num_processes=2)
    assert first == second == pytest.approx(weights, abs=1e-6)
    assert silent == {}
    for step in range(1, 5):
        assert told[step] == pytest.approx(metrics[step], rel=1e-5)
