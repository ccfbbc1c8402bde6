"""Construction of an optimizer for a model's parameters, sharded or not."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from windlass.core.errors import Problem, SpecError
from windlass.core.phrases import count
from windlass.train.optim.config import (
    AdamWConfig,
    DionConfig,
    LionConfig,
    MatrixConfig,
    MuonConfig,
    NorMuonConfig,
    OptimConfig,
    OptimTarget,
)
from windlass.train.optim.dion import Dion
from windlass.train.optim.groups import Assigned, assign, freeze, plain_parameters
from windlass.train.optim.lion import Lion
from windlass.train.optim.muon import Muon
from windlass.train.optim.normuon import NorMuon
from windlass.train.targets.calling import call_target

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["build_optimizer", "set_lr"]


def build_optimizer(
    model: nn.Module,
    config: OptimConfig,
    *,
    is_strict: bool = False,
    replicas: ProcessGroup | None = None,
    names: Collection[str] = (),
) -> Optimizer:
    """Build the optimizer for a model, after DDP or FSDP has been applied to the model.

    Every group has a `peak_lr`, from which `set_lr` computes `lr` before each step. Frozen parameters stop requiring gradients.

    Args:
        is_strict: update tensors one by one, without fused kernels.
        replicas: processes that hold identical whole parameters (DDP), between which Muon divides its work.
        names: names of all parameters that globs may match, if the model is a pipeline stage.

    Raises:
        SpecError: a glob matches nothing, or no parameter is trainable.
    """
    freeze(model, config.groups, names)
    assigned = assign(dict(plain_parameters(model)), config.groups, names)
    items = [item for item in assigned if item.parameter.requires_grad]
    if not items:
        where = " in a stage of the pipeline" if len(names) > len(assigned) else ""
        message = f"no trainable parameters{where}: optim.groups freezes them all"
        raise SpecError([Problem(message, "unmatched-glob", None, "narrow `match` of the frozen groups")])
    if isinstance(config, OptimTarget):
        return _own_optimizer(model, config, items)
    betas = (config.betas[0], config.betas[1])
    match config:
        case AdamWConfig():
            fused = _is_fused(config, [item.parameter for item in items], is_strict)
            return AdamW(
                _groups(items, config), lr=config.lr, betas=betas, eps=config.eps, **_kernels(fused, is_strict)
            )
        case LionConfig():
            return Lion(_groups(items, config), lr=config.lr, betas=betas)
        case MuonConfig() | NorMuonConfig() | DionConfig():
            return _of_matrices(items, config, is_fused=not is_strict, replicas=replicas)


def _of_matrices(
    items: Sequence[Assigned], config: MatrixConfig, *, is_fused: bool, replicas: ProcessGroup | None
) -> Optimizer:
    shared: dict[str, Any] = {
        "lr": config.lr,
        "momentum": config.momentum,
        "betas": (config.betas[0], config.betas[1]),
        "eps": config.eps,
        "is_fused": is_fused,
        "replicas": replicas,
    }
    groups = _muon_groups(items, config)
    if isinstance(config, DionConfig):
        return Dion(groups, rank_share=config.rank_share, **shared)
    shared |= {"is_nesterov": config.is_nesterov, "num_iterations": config.num_iterations}
    if isinstance(config, NorMuonConfig):
        return NorMuon(groups, row_beta=config.row_beta, **shared)
    return Muon(groups, scale=config.scale, **shared)


def _own_optimizer(model: nn.Module, config: OptimTarget, items: Sequence[Assigned]) -> Optimizer:
    """Build the user's own optimizer, which must update every parameter that is not frozen."""
    made = call_target(
        config,
        "optim",
        "optim",
        params=_groups(items, config),
        lr=config.lr,
        weight_decay=config.weight_decay,
        model=model,
    )
    if not isinstance(made, Optimizer):
        message = f"optim: {config.target} returned a {type(made).__name__}, not a torch.optim.Optimizer"
        raise SpecError([Problem(message, "recipe-wrong", None, "return the optimiser")])
    moved = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    left = [item.name for item in items if id(item.parameter) not in moved]
    if left:
        message = f"optim: {config.target} omits {count(len(left), 'parameter')}, such as {left[0]}"
        raise SpecError(
            [Problem(message, "setting-unused", None, "freeze them with `optim.groups`, or pass them to the optimiser")]
        )
    for group in made.param_groups:
        group.setdefault("peak_lr", group["lr"])
    return made


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of every group to its peak times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def _groups(items: Sequence[Assigned], config: OptimConfig) -> list[dict[str, Any]]:
    """Group parameters that have equal settings and the same mesh, in the order of the model."""
    found: dict[tuple[float, float, Hashable], list[Tensor]] = {}
    for item in items:
        mesh = item.parameter.device_mesh if isinstance(item.parameter, DTensor) else None
        found.setdefault((*_settings(item, config), mesh), []).append(item.parameter)
    return [
        {"params": parameters, "lr": lr, "peak_lr": lr, "weight_decay": decay}
        for (lr, decay, _), parameters in found.items()
    ]


def _muon_groups(items: Sequence[Assigned], config: MatrixConfig) -> list[dict[str, Any]]:
    matrices = [item for item in items if is_muon_matrix(item.name, item.parameter.ndim, config)]
    chosen = {item.name for item in matrices}
    rest = [item for item in items if item.name not in chosen]
    peak = config.lr if config.adamw_lr is None else config.adamw_lr
    return [
        *({**group, "algorithm": "muon"} for group in _groups(matrices, config)),
        *({**group, "algorithm": "adamw"} for group in _groups(rest, _at(config, peak))),
    ]


def is_muon_matrix(name: str, num_dims: int, config: MatrixConfig) -> bool:
    """Return whether Muon updates this parameter: a matrix, or a stack of matrices, that the settings match."""
    return (
        num_dims in {2, 3}
        and any(fnmatchcase(name, glob) for glob in config.matrices)
        and not any(fnmatchcase(name, glob) for glob in config.except_matrices)
    )


def _at(config: MatrixConfig, lr: float) -> MatrixConfig:
    return replace(config, lr=lr)


def _settings(item: Assigned, config: OptimConfig) -> tuple[float, float]:
    if item.group < 0:
        return config.lr, config.weight_decay
    own = config.groups[item.group]
    lr = config.lr if own.lr is None else own.lr
    return lr, config.weight_decay if own.weight_decay is None else own.weight_decay


def _is_fused(config: AdamWConfig, parameters: Sequence[Tensor], is_strict: bool) -> bool:
    if is_strict or config.is_fused is False:
        return False
    return all(parameter.device.type in {"cpu", "cuda"} and parameter.is_floating_point() for parameter in parameters)


def _kernels(is_fused: bool, is_strict: bool) -> Mapping[str, Any]:
    if is_strict:
        return {"foreach": False, "fused": False}
    return {"fused": True} if is_fused else {"foreach": True}


def ensure_state(optimizer: Optimizer) -> None:
    """Initialize the state that parameters lack, without a step, so that a checkpoint can fill it."""
    if isinstance(optimizer, (Lion, Muon)):
        optimizer.ensure_state()
        return
    assert isinstance(optimizer, AdamW)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                device = parameter.device if group["fused"] else torch.device("cpu")
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
