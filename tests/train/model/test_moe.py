"""Experts: none is too full, and losses that keep them busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.model import tiny
from windlass.train.batch import IGNORE
from windlass.train.model.config import MoEConfig
from windlass.train.model.decoder import LossSums
from windlass.train.model.moe import MoE, run_experts, run_grouped


def layer(**changes: Any) -> MoE:
    made = MoE(8, MoEConfig(**{"num_experts": 5, "top_k": 2, "hidden": 6, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return made


def tokens(count: int = 14) -> Tensor:
    return torch.randn(2, count // 2, 8, generator=torch.Generator().manual_seed(1))


def by_definition(moe: MoE, x_BTD: Tensor) -> Tensor:
    """Each token on its own, through the experts with the highest scores."""
    config, rows = moe.config, []
    for x_D in x_BTD.flatten(0, 1):
        logits_E = moe.router.weight @ x_D
        scores_E = logits_E.softmax(0) if config.gate == "softmax" else logits_E.sigmoid()
        weights_K, chosen_K = scores_E.topk(config.top_k)
        weights_K = weights_K / weights_K.sum() if config.normalize else weights_K
        out_D = torch.zeros_like(x_D) if moe.shared is None else moe.shared(x_D)
        for weight, expert in zip(weights_K, chosen_K, strict=True):
            made_H = F.silu(moe.gate[expert] @ x_D) * (moe.up[expert] @ x_D)
            out_D = out_D + weight * (moe.down[expert] @ made_H)
        rows.append(out_D)
    return torch.stack(rows).view_as(x_BTD)


@pytest.mark.parametrize(
    "changes",
    [{}, {"gate": "sigmoid"}, {"normalize": False}, {"shared_hidden": 4}, {"top_k": 1}, {"top_k": 5}],
    ids=str,
)
def test_every_token_gets_its_experts(changes: dict[str, Any]) -> None:
    """Outputs and all gradients are those of each token on its own, so nothing is dropped however uneven the load."""
    moe, x_BTD = layer(**changes), tokens()
    grads: list[list[Tensor]] = []
    outs: list[Tensor] = []
    ways: list[Callable[[Tensor], Tensor]] = [lambda x: moe(x)[0], lambda x: by_definition(moe, x)]
    for way in ways:
        own_BTD = x_BTD.clone().requires_grad_()
        outs.append(way(own_BTD))
        outs[-1].square().sum().backward()
        assert own_BTD.grad is not None
        grads.append([own_BTD.grad, *(p.grad for p in moe.parameters() if p.grad is not None)])
        moe.zero_grad()
    torch.testing.assert_close(outs[0], outs[1])
    assert len(grads[0]) == len(grads[1])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_all_tokens_may_want_the_same_expert() -> None:
    moe = layer(top_k=1)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[3] = 1.0
    x_BTD = tokens().abs()
    torch.testing.assert_close(moe(x_BTD)[0], by_definition(moe, x_BTD))


def test_grouped_products_are_those_of_each_expert() -> None:
    """What a GPU computes, in torch's own loop over groups for CPUs; an expert may have no row."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((24, 16), (4, 8, 16), (4, 8, 16), (4, 16, 8))
    given = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    weights_PD = torch.randn(24, 16, generator=generator).bfloat16()
    made: list[list[Tensor | None]] = []
    for run in (run_experts, run_grouped):
        x_PD, gate, up, down = (one.clone().requires_grad_() for one in given)
        out_PD = run(x_PD, torch.tensor([5, 0, 12, 7]), gate, up, down)
        (out_PD * weights_PD).sum().backward()
        made.append([out_PD, *(one.grad for one in (x_PD, gate, up, down))])
    for ours, theirs in zip(*made, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_balance_loss_is_one_where_the_load_is_even() -> None:
    """E * sum of (share of pairs * mean probability): 1 when all are 1 / E, E when one expert takes all."""
    even = layer(top_k=5, balance_loss=1.0)
    with torch.no_grad():
        even.router.weight.zero_()
    assert even(tokens())[1].item() == pytest.approx(1.0)
    uneven = layer(top_k=1, balance_loss=1.0)
    with torch.no_grad():
        uneven.router.weight.zero_()
        uneven.router.weight[3] = 100.0
    assert uneven(tokens().abs())[1].item() == pytest.approx(5.0)


def test_the_router_z_loss_is_the_mean_square_of_its_log_normaliser() -> None:
    moe = layer(balance_loss=0.0, router_z_loss=0.5)
    expected = 0.5 * (tokens() @ moe.router.weight.T).logsumexp(-1).square().mean()
    torch.testing.assert_close(moe(tokens())[1], expected)


def test_experts_elsewhere_are_reached_through_a_transport() -> None:
    moe, seen = layer(), []

    def there(run: Callable[[Tensor, Tensor], Tensor], x_PD: Tensor, counts_E: Tensor) -> Tensor:
        seen.append((x_PD.shape, int(counts_E.sum())))
        return run(x_PD, counts_E)

    expected = moe(tokens())[0]
    moe.transport = there
    assert torch.equal(moe(tokens())[0], expected)
    assert seen == [((28, 8), 28)]


def test_losses_of_experts_are_a_mean_times_the_labels_that_count() -> None:
    model = tiny.decoder(moe=MoEConfig(num_experts=4, hidden=8, balance_loss=0.3))
    labels_BT = tiny.tokens(seed=1)
    made = model(tiny.tokens(), labels_BT=labels_BT)
    labels_BT[0] = IGNORE
    fewer = model(tiny.tokens(), labels_BT=labels_BT)
    assert isinstance(made, LossSums)
    assert isinstance(fewer, LossSums)
    assert made.aux.item() == pytest.approx(2 * fewer.aux.item())
    assert 2 * 0.3 * 24 * 0.9 < made.aux.item() < 2 * 0.3 * 24 * 4
    (made.loss + made.z_loss + made.aux).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for n, p in model.named_parameters() if "router" in n)
