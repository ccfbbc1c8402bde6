"""First weights, the same on any mesh.

A parameter's values are a function of the seed, its name and its whole shape. Each process makes the whole parameter
and keeps its shard, so it costs the memory of the largest parameter for a moment, and no communication.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from windlass.train.model.decoder import Decoder

__all__ = ["init_weights"]

CUT = 3.0
"""Spreads beyond which no weight is."""


def init_weights(model: Decoder, seed: int, *, device: torch.device | None = None) -> None:
    """Fill a decoder's parameters: matrices normal, cut at three spreads; norms one; biases zero.

    Args:
        model: on any device. Parameters on the meta device are made on `device` first.
        seed: of all parameters; each has a generator of its own.
        device: for a model on the meta device; CPU by default. CPU and GPU give different values.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device or torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, seed, model.config.init_std)


def _fill(name: str, parameter: Tensor, seed: int, spread: float) -> None:
    if parameter.dim() == 1:
        parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return
    generator = torch.Generator(parameter.device).manual_seed(_seed_of(seed, name))
    whole = _cut_normal(parameter.shape, generator).mul_(spread)
    if not hasattr(parameter, "device_mesh"):
        parameter.copy_(whole)
        return
    from torch.distributed.tensor import distribute_tensor  # lazy: half a second, and one process does without

    # no source rank: every process has made the same values, nothing needs to be sent
    shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.to_local().copy_(shard.to_local())


def _cut_normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Normal values, those beyond three drawn again until none is; in a quarter of the time of `trunc_normal_`."""
    flat = torch.randn(shape.numel(), generator=generator, device=generator.device)
    far = (flat.abs() > CUT).nonzero()[:, 0]
    while len(far):
        flat[far] = torch.randn(len(far), generator=generator, device=generator.device)
        far = far[flat[far].abs() > CUT]
    return flat.view(shape)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
