"""Groups by pattern, kernels, learning rates, and every optimiser against a reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from windlass.core.errors import SpecError
from windlass.train.optim.build import build_optimizer, ensure_state, set_lr
from windlass.train.optim.config import AdamWConfig, GroupConfig, LionConfig, MuonConfig, OptimConfig
from windlass.train.optim.groups import freeze, plain_parameters

ALL: list[OptimConfig] = [AdamWConfig(), AdamWConfig(is_fused=False), LionConfig(), MuonConfig()]


class Small(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleDict({"0": nn.ModuleDict({"up": nn.Linear(8, 12), "norm": nn.LayerNorm(12)})})
        self.head = nn.Linear(12, 11, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block: Any = self.blocks["0"]
        out: torch.Tensor = self.head(block["norm"](block["up"](self.embed(x))))
        return out


def backward(model: nn.Module, seed: int = 1) -> None:
    model.zero_grad()
    tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(seed))
    model(tokens).square().mean().backward()


def names(model: nn.Module, group: dict[str, Any]) -> list[str]:
    known = {parameter: name for name, parameter in plain_parameters(model)}
    return [known[parameter] for parameter in group["params"]]


def test_the_first_group_that_matches_wins() -> None:
    model = Small()
    groups = (
        GroupConfig(match=("embed.*",), lr=1.0),
        GroupConfig(match=("*.norm.*", "*.bias"), weight_decay=0.0),
        GroupConfig(match=("*",), lr=2.0),
    )
    optimizer = build_optimizer(model, AdamWConfig(lr=0.5, weight_decay=0.3, groups=groups))
    found = [(group["lr"], group["weight_decay"], names(model, group)) for group in optimizer.param_groups]
    assert found == [
        (1.0, 0.3, ["embed.weight"]),
        (2.0, 0.3, ["blocks.0.up.weight", "head.weight"]),
        (0.5, 0.0, ["blocks.0.up.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"]),
    ]


def test_a_glob_that_matches_nothing_is_refused_with_the_nearest_name() -> None:
    groups = (GroupConfig(match=("embed.wieght", "head.*"), lr=1.0), GroupConfig(match=("nrom",), lr=1.0))
    with pytest.raises(SpecError) as caught:
        build_optimizer(Small(), AdamWConfig(groups=groups))
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [
        ("optim.groups.0.match 'embed.wieght' matches no parameter", "did you mean `embed.weight`?"),
        (
            "optim.groups.1.match 'nrom' matches no parameter",
            "parameters are named like embed.weight, blocks.0.up.weight, blocks.0.up.bias",
        ),
    ]
    assert {problem.code for problem in caught.value.problems} == {"unmatched-glob"}


def test_frozen_parameters_are_left_out_and_stop_requiring_gradients() -> None:
    model = Small()
    config = AdamWConfig(groups=(GroupConfig(match=("embed.*", "blocks.*"), is_frozen=True),))
    optimizer = build_optimizer(model, config)
    assert [names(model, group) for group in optimizer.param_groups] == [["head.weight"]]
    assert not model.embed.weight.requires_grad
    freeze(model, config.groups)


def test_nothing_left_to_train_is_refused() -> None:
    config = AdamWConfig(groups=(GroupConfig(match=("*",), is_frozen=True),))
    with pytest.raises(SpecError, match="no trainable parameters"):
        build_optimizer(Small(), config)


def test_names_are_plain_below_compilation_and_checkpointing() -> None:
    model = Small()
    block: Any = model.blocks["0"]
    block["up"] = torch.compile(block["up"], backend="eager")
    assert "blocks.0.up.weight" in dict(plain_parameters(model))
    optimizer = build_optimizer(model, AdamWConfig(groups=(GroupConfig(match=("blocks.0.up.*",), lr=1.0),)))
    assert names(model, optimizer.param_groups[1]) == ["blocks.0.up.weight", "blocks.0.up.bias"]


@pytest.mark.parametrize("config", ALL)
def test_learning_rates_follow_the_factor_of_their_peak(config: OptimConfig) -> None:
    optimizer = build_optimizer(Small(), config)
    set_lr(optimizer, 0.5)
    set_lr(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25 * config.lr}


@pytest.mark.parametrize("config", ALL)
def test_a_rate_of_zero_moves_nothing(config: OptimConfig) -> None:
    model = Small()
    optimizer = build_optimizer(model, config)
    before = [parameter.clone() for parameter in model.parameters()]
    backward(model)
    set_lr(optimizer, 0.0)
    optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_kernels_of_adamw() -> None:
    def kernels(config: AdamWConfig, *, is_strict: bool = False) -> tuple[Any, Any]:
        group = build_optimizer(Small(), config, is_strict=is_strict).param_groups[0]
        return group["fused"], group["foreach"]

    assert kernels(AdamWConfig()) == (True, None)
    assert kernels(AdamWConfig(is_fused=False)) == (None, True)
    assert kernels(AdamWConfig(), is_strict=True) == (False, False)


def test_adamw_decays_apart_from_the_gradient() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    holder = nn.Module()
    holder.weight = weight
    optimizer = build_optimizer(holder, AdamWConfig(lr=0.1, weight_decay=0.5, eps=1e-12))
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1, rel=1e-6)


def test_lion_by_hand() -> None:
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.tensor([1.0, -1.0, 1.0]))
    optimizer = build_optimizer(holder, LionConfig(lr=0.1, weight_decay=0.5, betas=(0.9, 0.8)))
    weight = torch.tensor([1.0, -1.0, 1.0])
    momentum = torch.zeros(3)
    for grad in (torch.tensor([0.5, -2.0, 0.0]), torch.tensor([-0.1, 9.0, 0.3])):
        holder.weight.grad = grad.clone()
        optimizer.step()
        weight = weight - 0.1 * ((0.9 * momentum + 0.1 * grad).sign() + 0.5 * weight)
        momentum = 0.8 * momentum + 0.2 * grad
        torch.testing.assert_close(holder.weight.detach(), weight)


def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest() -> None:
    ours, theirs = Small(), Small()
    config = MuonConfig(lr=0.02, adamw_lr=0.003, weight_decay=0.1)
    optimizer = build_optimizer(ours, config)
    matrix = theirs.get_parameter("blocks.0.up.weight")
    rest = [parameter for parameter in theirs.parameters() if parameter is not matrix]
    reference = [
        torch.optim.Muon([matrix], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=0.003, weight_decay=0.1, betas=(0.9, 0.95)),
    ]
    assert [group["algorithm"] for group in optimizer.param_groups] == ["muon", "adamw"]
    for seed in range(3):
        for model in (ours, theirs):
            backward(model, seed)
        optimizer.step()
        for each in reference:
            each.step()
    torch.testing.assert_close(
        [p.detach() for p in ours.parameters() if p.ndim == 1],
        [p.detach() for p in theirs.parameters() if p.ndim == 1],
    )
    moved = float((matrix - Small().get_parameter("blocks.0.up.weight")).detach().norm())
    # Theirs iterates in bfloat16, ours on a CPU in float32.
    assert float((ours.get_parameter("blocks.0.up.weight") - matrix).detach().norm()) < 0.02 * moved


@pytest.mark.parametrize("config", ALL)
def test_state_passes_through_distributed_checkpoint(config: OptimConfig) -> None:
    first, second = Small(), Small()
    source, target = build_optimizer(first, config), build_optimizer(second, config)
    for seed in range(2):
        backward(first, seed)
        source.step()
    second.load_state_dict(first.state_dict())
    state = copy.deepcopy(get_optimizer_state_dict(first, source))
    set_optimizer_state_dict(second, target, state)
    for model, optimizer in ((first, source), (second, target)):
        backward(model, 7)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("config", ALL)
def test_first_state_is_what_a_step_would_make(config: OptimConfig) -> None:
    model, other = Small(), Small()
    optimizer, stepped = build_optimizer(model, config), build_optimizer(other, config)
    ensure_state(optimizer)
    backward(other)
    stepped.step()

    def shapes(optim: torch.optim.Optimizer) -> list[dict[str, Any]]:
        return [{key: (v.shape, v.dtype, v.device) for key, v in state.items()} for state in optim.state.values()]

    assert shapes(optimizer) == shapes(stepped)
    assert all(float(value.sum()) == 0.0 for state in optimizer.state.values() for value in state.values())
