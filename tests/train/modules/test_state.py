"""Models and optimisers as flat mappings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.tiny import PointLoader as Points
from tests.train.tiny import point_loss, point_model
from windlass.train.modules.state import ensure_state, load_training_state, training_state


def make(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "fused": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True),
        "nadam": torch.optim.NAdam,
        "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    }
    return kinds[kind](model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss, _ = point_loss(model, next(iter(Points())))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["adamw", "fused", "nadam", "sgd"])
def test_a_state_goes_into_a_fresh_optimiser_and_training_goes_on_alike(kind: str) -> None:
    model = point_model()
    optimizer = make(kind, model)
    step(model, optimizer)
    saved = {
        section: {name: value.clone() for name, value in part.items()}
        for section, part in training_state(model, optimizer).items()
    }
    step(model, optimizer)

    other = point_model(seed=5)
    fresh = make(kind, other)
    load_training_state(other, fresh, saved)
    step(other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["adamw", "nadam", "sgd"])
def test_making_a_first_state_moves_nothing(kind: str) -> None:
    model, untouched = point_model(), point_model()
    optimizer, plain = make(kind, model), make(kind, untouched)
    ensure_state(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    for both in ((model, optimizer), (untouched, plain)):
        step(*both)
    # of some optimisers the state before the first step is not what ours says: their first step may differ
    if kind == "adamw":
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))


def test_frozen_parameters_have_weights_but_no_state() -> None:
    model = point_model()
    next(model.parameters()).requires_grad_(False)
    optimizer = torch.optim.NAdam([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    state: dict[str, Any] = training_state(model, optimizer)
    assert "0.weight" in state["model"]
    assert not any(name.startswith("0.weight") for name in state["optim"])
