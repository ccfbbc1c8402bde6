"""NorMuon and Dion against their papers' algorithms, written out plainly for one matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from windlass.train.modules.state import load_training_state, training_state
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.config import DionConfig, NorMuonConfig
from windlass.train.optim.muon import newton_schulz
from windlass.train.optim.skip import step_unless

SHAPES = [(6, 10), (10, 6), (7, 7)]


class Net(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(columns, rows)])
        self.head = nn.Linear(rows, 3)


def gradients(rows: int, columns: int, steps: int = 4) -> list[Tensor]:
    return [torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) for seed in range(steps)]


def trained(config: NorMuonConfig | DionConfig, rows: int, columns: int) -> Tensor:
    net = Net(rows, columns)
    optimizer = build_optimizer(net, config)
    for grad in gradients(rows, columns):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        net.blocks[0].get_parameter("weight").grad = grad.clone()
        optimizer.step()
    return net.blocks[0].get_parameter("weight").detach()


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_normuon_is_its_algorithm(rows: int, columns: int) -> None:
    """Source: arXiv 2510.05491, algorithm 1."""
    lr, decay, beta1, beta2, eps = 0.02, 0.1, 0.9, 0.8, 1e-8
    weight = Net(rows, columns).blocks[0].get_parameter("weight").detach()
    momentum, second = torch.zeros_like(weight), torch.zeros(rows)
    for grad in gradients(rows, columns):
        momentum = beta1 * momentum + (1 - beta1) * grad
        orthogonal = newton_schulz(momentum, 5)
        second = beta2 * second + (1 - beta2) * (orthogonal**2).mean(dim=1)
        normalised = orthogonal / (second.sqrt()[:, None] + eps)
        rate = 0.2 * lr * math.sqrt(rows * columns) / normalised.norm()
        weight = weight - lr * decay * weight - rate * normalised
    config = NorMuonConfig(lr=lr, weight_decay=decay, momentum=beta1, row_beta=beta2, eps=eps)
    torch.testing.assert_close(trained(config, rows, columns), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_dion_is_its_algorithm(rows: int, columns: int, share: float) -> None:
    """Source: arXiv 2504.05295, algorithm 1. The first right factor is taken from the optimiser: it is arbitrary."""
    lr, decay, mu = 0.02, 0.1, 0.9
    config = DionConfig(lr=lr, weight_decay=decay, momentum=mu, rank_share=share)
    net = Net(rows, columns)
    right = training_state(net, build_optimizer(net, config))["optim"]["blocks.0.weight.right"].clone()
    assert right.shape == (columns, round(share * min(rows, columns)))
    weight = net.blocks[0].get_parameter("weight").detach()
    momentum = torch.zeros_like(weight)
    for grad in gradients(rows, columns):
        buffer = momentum + grad
        left, _ = torch.linalg.qr(buffer @ right)
        product = buffer.T @ left
        momentum = buffer - (1 - mu) * left @ product.T
        right = product / product.norm(dim=0)
        weight = weight - lr * decay * weight - lr * math.sqrt(rows / columns) * left @ right.T
    torch.testing.assert_close(trained(config, rows, columns), weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [NorMuonConfig(lr=0.02), DionConfig(lr=0.02)])
def test_nothing_moves_without_a_gradient_or_in_a_step_that_is_left_out(config: NorMuonConfig | DionConfig) -> None:
    net = Net(6, 10)
    optimizer = build_optimizer(net, config)
    state = {name: value.clone() for name, value in training_state(net, optimizer)["optim"].items()}
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    step_unless(optimizer, torch.ones(()))
    assert all(map(torch.equal, net.parameters(), before))
    assert all(torch.equal(value, state[name]) for name, value in training_state(net, optimizer)["optim"].items())
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in net.parameters())


@pytest.mark.parametrize("config", [NorMuonConfig(lr=0.02), DionConfig(lr=0.02, rank_share=0.5)])
def test_a_state_that_was_kept_goes_on_with_the_same_bits(config: NorMuonConfig | DionConfig) -> None:
    def steps(net: Net, optimizer: torch.optim.Optimizer, grads: list[Tensor]) -> None:
        for grad in grads:
            for parameter in net.parameters():
                parameter.grad = torch.full_like(parameter, float(grad[0, 0]))
            net.blocks[0].get_parameter("weight").grad = grad.clone()
            optimizer.step()

    grads = gradients(6, 10)
    straight, first, second = Net(6, 10), Net(6, 10), Net(6, 10)
    steps(straight, build_optimizer(straight, config), grads)
    earlier = build_optimizer(first, config)
    steps(first, earlier, grads[:2])
    later = build_optimizer(second, config)
    kept = training_state(first, earlier)
    load_training_state(second, later, {part: {n: v.clone() for n, v in held.items()} for part, held in kept.items()})
    steps(second, later, grads[2:])
    assert all(map(torch.equal, straight.parameters(), second.parameters()))
