"""Initialization of weights, identical on any mesh.

A parameter's values are a function of the seed, its name and its whole shape. Each process generates the whole
parameter and keeps its shard, which temporarily needs the memory of the largest parameter, but no communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from windlass.core.errors import Problem, SpecError
from windlass.train.model.adapters import LoRALinear
from windlass.train.model.decoder import Decoder
from windlass.train.model.layers import RMSNorm
from windlass.train.model.moe import MoE

__all__ = ["init_weights"]

CUT = 3.0
"""Truncation of initial weights, in standard deviations."""

_NORMS = (RMSNorm, nn.RMSNorm, nn.LayerNorm)
_EXPERTS = ("gate", "up", "down")


def init_weights(
    model: nn.Module, seed: int, *, device: torch.device | None = None, std: float | None = None
) -> list[str]:
    """Initialize a model: truncated normal matrices, norms of one, biases of zero.

    This covers linear layers, embeddings, norms, our experts and adapters (whose second matrix is zero). Other parameters keep the values that their modules
    set; on the meta device, the module's `reset_parameters` is called instead.

    Args:
        model: model on any device. Parameters on the meta device are first allocated on `device`.
        seed: seed for all parameters; each has a separate generator.
        device: for a model on the meta device; CPU by default. CPU and GPU give different values.
        std: standard deviation of matrices; if None, a decoder's `init_std`, or 0.02 for other models.

    Returns:
        Names of the parameters that were left to their own modules.

    Raises:
        SpecError: a parameter has no value, and its module has no `reset_parameters`.
    """
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    if is_meta:
        model.to_empty(device=device or torch.device("cpu"))
    spread = std if std is not None else model.config.init_std if isinstance(model, Decoder) else 0.02
    known = _known(model)
    others = [name for name, _ in model.named_parameters() if name not in known]
    if is_meta and others:
        _reset(model, others)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in known:
                own = LoRALinear.initial_std(parameter.shape[1]) if name.endswith(".lora_a") else spread
                _fill(name, parameter, seed, own, known[name])
    return others


def _known(model: nn.Module) -> dict[str, float | None]:
    """Return the fill value for each parameter that is initialized here; None stands for normal values."""
    found: dict[str, float | None] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, _ in module.named_parameters(recurse=False):
            if isinstance(module, (*_NORMS, nn.Linear, nn.Embedding)) and name in ("bias", "lora_b"):
                found[prefix + name] = 0.0
            elif isinstance(module, _NORMS) and name == "weight":
                found[prefix + name] = 1.0
            elif (isinstance(module, (nn.Linear, nn.Embedding)) and name in ("weight", "lora_a")) or (
                isinstance(module, MoE) and name in _EXPERTS
            ):
                found[prefix + name] = None
    return found


def _reset(model: nn.Module, names: Sequence[str]) -> None:
    """Call `reset_parameters` on the modules that hold these parameters."""
    owners = dict.fromkeys(name.rpartition(".")[0] for name in names)
    problems = []
    for owner in owners:
        module = model.get_submodule(owner)
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            continue
        name = next(name for name in names if name.rpartition(".")[0] == owner)
        message = f"cannot initialize `{name}`: unknown layer {type(module).__name__}"
        hint = "add a method `reset_parameters` to the module, or create the model on the CPU, with values"
        problems.append(Problem(message, "unsupported-model", None, hint))
    if problems:
        raise SpecError(problems)


def _fill(name: str, parameter: Tensor, seed: int, spread: float, value: float | None) -> None:
    if value is not None:
        parameter.fill_(value)
        return
    generator = torch.Generator(parameter.device).manual_seed(_seed_of(seed, name))
    whole = _cut_normal(parameter.shape, generator).mul_(spread)
    if not hasattr(parameter, "device_mesh"):
        parameter.copy_(whole)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # lazy: 0.5 s, and a single process needs neither

    assert isinstance(parameter, DTensor)
    # no source rank: every process has generated the same values, so nothing is sent
    shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.to_local().copy_(shard.to_local())


def _cut_normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Sample normal values, resampling those beyond three.

    Takes a quarter of the time that `trunc_normal_` needs.
    """
    flat = torch.randn(shape.numel(), generator=generator, device=generator.device)
    far = (flat.abs() > CUT).nonzero()[:, 0]
    while len(far):
        flat[far] = torch.randn(len(far), generator=generator, device=generator.device)
        far = far[flat[far].abs() > CUT]
    return flat.view(shape)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
