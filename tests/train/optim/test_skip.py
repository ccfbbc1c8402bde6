"""Which steps are skipped, and that a skipped step leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.optim.devices import DEVICES
from windlass.train.optim.build import build_optimizer, ensure_state
from windlass.train.optim.config import AdamWConfig, LionConfig, MuonConfig, OptimConfig, SkipConfig
from windlass.train.optim.skip import SkipGuard, guarded_step, step_unless

CPU = torch.device("cpu")


def tell(guard: SkipGuard, loss: float, norm: float = 1.0) -> bool:
    return bool(guard.judge(torch.tensor(loss), torch.tensor(norm)))


def warm(window: int = 8, sigmas: float = 3.0) -> SkipGuard:
    guard = SkipGuard(SkipConfig(window=window, sigmas=sigmas), CPU)
    for number in range(window):
        assert not tell(guard, 2.0 + 0.1 * (-1) ** number, 1.0 + 0.01 * (-1) ** number)
    return guard


def test_a_spike_of_loss_or_norm_is_skipped() -> None:
    assert tell(warm(), 3.0)
    assert tell(warm(), 2.0, norm=1.2)
    assert not tell(warm(), 2.2)
    assert not tell(warm(), 0.1)


def test_limit_is_so_many_standard_deviations_above_the_mean() -> None:
    past = torch.tensor([2.0 + 0.1 * (-1) ** number for number in range(8)], dtype=torch.float64)
    limit = float(past.mean() + 3.0 * past.std())
    assert not tell(warm(), limit - 1e-5)
    assert tell(warm(), limit + 1e-5)


def test_nothing_is_skipped_before_half_a_window() -> None:
    guard = SkipGuard(SkipConfig(window=8, sigmas=3.0), CPU)
    assert [tell(guard, loss) for loss in (2.0, 2.1, 50.0, 2.0)] == [False] * 4


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_skipped_at_once_and_not_remembered(value: float) -> None:
    guard = SkipGuard(SkipConfig(window=8, sigmas=3.0), CPU)
    assert tell(guard, value)
    assert tell(guard, 1.0, norm=value)
    assert int(guard.state_dict()["count"]) == 0
    guard = warm()
    assert tell(guard, value)
    assert not tell(guard, 2.1)


def test_a_lasting_change_of_level_is_accepted() -> None:
    guard = warm()
    answers = [tell(guard, 3.0) for _ in range(8)]
    assert answers[0]
    assert not answers[-1]


def test_memory_survives_a_checkpoint() -> None:
    first, second = warm(), SkipGuard(SkipConfig(window=8, sigmas=3.0), CPU)
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    assert tell(second, 3.0)
    other = SkipGuard(SkipConfig(window=4, sigmas=3.0), CPU)
    other.load_state_dict(first.state_dict())
    assert not tell(other, 3.0)


def test_the_loss_is_summed_over_processes() -> None:
    def double(value: Tensor) -> None:
        value.mul_(2.0)

    guard = SkipGuard(SkipConfig(window=8, sigmas=3.0), CPU, double)
    share = torch.tensor(1.5)
    guard.judge(share, torch.tensor(1.0))
    assert float(guard.state_dict()["past"][0, 0]) == 3.0
    assert float(share) == 1.5


def model(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    holder = nn.Module()
    holder.blocks = nn.Linear(6, 4)
    return holder.to(device)


def trace(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*net.parameters(), *states)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", [guarded_step, step_unless])
@pytest.mark.parametrize("config", [AdamWConfig(), LionConfig(), MuonConfig()])
@pytest.mark.parametrize("grad", [1.0, float("nan")])
def test_a_skipped_step_leaves_no_trace(config: OptimConfig, way: Any, grad: float, device: str) -> None:
    net = model(device)
    optimizer = build_optimizer(net, config)
    ensure_state(optimizer)
    generator = torch.Generator().manual_seed(1)

    def gradients(factor: float) -> None:
        for parameter in net.parameters():
            parameter.grad = (factor * torch.randn(parameter.shape, generator=generator)).to(device)

    gradients(1.0)
    way(optimizer, torch.tensor(0.0, device=device))
    before = trace(net, optimizer)
    gradients(grad)
    way(optimizer, torch.tensor(1.0, device=device))
    assert all(torch.equal(a, b) for a, b in zip(before, trace(net, optimizer), strict=True))
    gradients(1.0)
    way(optimizer, torch.tensor(0.0, device=device))
    assert not any(torch.equal(a, b) for a, b in zip(before, trace(net, optimizer), strict=True))
    assert "found_inf" not in vars(optimizer)


def test_an_optimiser_that_cannot_look_is_asked_by_the_host() -> None:
    net = model()
    optimizer = build_optimizer(net, AdamWConfig(), is_strict=True)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    guarded_step(optimizer, torch.tensor(1.0))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    guarded_step(optimizer, torch.tensor(0.0))
    assert not torch.equal(before[0], next(iter(net.parameters())))
