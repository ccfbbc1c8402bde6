"""State of a model and its optimizer, as flat mappings from plain names to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from windlass.core.errors import Problem, SpecError
from windlass.train.optim import build as optim_build
from windlass.train.optim.dion import Dion
from windlass.train.optim.groups import plain_name
from windlass.train.optim.lion import Lion
from windlass.train.optim.muon import Muon
from windlass.train.optim.normuon import NorMuon

__all__ = ["load_training_state", "training_state"]


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return {"model": {name: tensor}, "optim": {name.key: tensor}} without copies, with DTensors if sharded.

    The state of an optimiser before its first step is initialized, so that a checkpoint can fill it.
    """
    state: dict[str, Any] = {"model": _weights(model)}
    if optimizer is not None:
        ensure_state(optimizer)
        state["optim"] = dict(_optimizer_tensors(model, optimizer))
    return state


def load_training_state(model: nn.Module, optimizer: torch.optim.Optimizer | None, state: Mapping[str, Any]) -> None:
    """Load a mapping made by `training_state`.

    Tensors already in use are not copied; what the mapping lacks is unchanged.
    """
    _fill(_weights(model), state.get("model", {}))
    if optimizer is not None and "optim" in state:
        ensure_state(optimizer)
        _fill(dict(_optimizer_tensors(model, optimizer)), state["optim"])
        _put_numbers(model, optimizer, state["optim"])


def ensure_state(optimizer: torch.optim.Optimizer) -> None:
    """Initialize an optimizer's state without changing weights; do nothing if it has one."""
    if type(optimizer) in (torch.optim.AdamW, Lion, Muon, NorMuon, Dion):  # a subclass may have additional state
        optim_build.ensure_state(optimizer)
        return
    if optimizer.state:
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    earlier = [(weight, weight.grad) for weight in weights]
    rates = [group["lr"] for group in optimizer.param_groups]
    before = [_numbers(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for weight, grad in earlier:
        weight.grad = grad
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    _refuse_group_state(optimizer, before)
    for entry in optimizer.state.values():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif _is_number(value):
                entry[key] = type(value)(0)


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if _is_number(value) and key not in ("lr", "peak_lr")}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refuse_group_state(optimizer: torch.optim.Optimizer, before: list[dict[str, Any]]) -> None:
    """Reject optimizers that keep counters in their groups.

    Checkpoints do not hold them, so a resumed run would differ.
    """
    for group, old in zip(optimizer.param_groups, before, strict=True):
        changed = [key for key, value in _numbers(group).items() if old.get(key) != value]
        if changed:
            kind = type(optimizer).__name__
            message = (
                f"{kind} counts `{changed[0]}` in its groups; checkpoints do not save that, so it cannot be resumed"
            )
            hint = "keep it in the state of each parameter, or set `no_checkpoints=true`"
            raise SpecError([Problem(message, "checkpoint-state", None, hint)])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {plain_name(name): value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    names: dict[Tensor, str] = {weight: plain_name(name) for name, weight in model.named_parameters()}
    for weight, entry in optimizer.state.items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                yield f"{names[weight]}.{key}", value
            elif _is_number(value):
                yield f"{names[weight]}.{key}", torch.tensor(value, dtype=torch.float64)


def _put_numbers(model: nn.Module, optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Restore the Python numbers in an optimizer's state."""
    names: dict[Tensor, str] = {weight: plain_name(name) for name, weight in model.named_parameters()}
    for weight, entry in optimizer.state.items():
        for key, value in entry.items():
            kept = values.get(f"{names[weight]}.{key}")
            if _is_number(value) and kept is not None:
                entry[key] = type(value)(float(kept))


def _fill(targets: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, target in targets.items():
            value = values.get(name)
            if value is not None and value is not target and not _is_same(value, target):
                target.copy_(value)


def _is_same(value: Tensor, target: Tensor) -> bool:
    left, right = (getattr(each, "_local_tensor", each) for each in (value, target))
    return bool(left.data_ptr() == right.data_ptr() and left.shape == right.shape)
