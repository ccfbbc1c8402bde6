"""Rotary position embeddings, and methods for extending them.

Legend: B rows, H heads, T tokens, K head size, R rotated part of it, F = R / 2 frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.train.model.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling

__all__ = ["RopeTable", "Rotation", "frequencies", "rotate"]


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines for each token and rotated channel, in float32; (B, 1, T, R) if rows have their own positions.

    Not a tuple, because mixed precision casts tensors in tuples.
    """

    cos_TR: Tensor
    sin_TR: Tensor


class RopeTable:
    """Rotations for a RopeConfig, computed once per device and cached up to the longest length requested.

    Not a module: it has no state to save, and a model on the meta device does not need it.
    """

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        self._config = config
        self._head_dim = head_dim
        self._tables: dict[torch.device, Rotation] = {}

    def take(self, start: int, length: int, device: torch.device, positions_T: Tensor | None = None) -> Rotation:
        """Return the rotations for `length` tokens from `start` on, or for tokens at the given positions."""
        if positions_T is not None:
            return _rotation(self._config, self._head_dim, positions_T)
        table = self._table(start + length, device)
        if start == 0 and table.cos_TR.shape[0] == length:
            return table
        return Rotation(table.cos_TR[start : start + length], table.sin_TR[start : start + length])

    def take_rows(self, positions_BT: Tensor, max_length: int) -> Rotation:
        """Return the rotations of tokens at positions below `max_length` that differ between rows, (B, 1, T, R)."""
        table = self._table(max_length, positions_BT.device)
        return Rotation(table.cos_TR[positions_BT][:, None], table.sin_TR[positions_BT][:, None])

    def _table(self, length: int, device: torch.device) -> Rotation:
        table = self._tables.get(device)
        if table is None or table.cos_TR.shape[0] < length:
            # outside inference mode: autograd cannot use a table created in it
            with torch.inference_mode(mode=False):
                table = _rotation(self._config, self._head_dim, torch.arange(length, device=device))
            self._tables[device] = table
        return table


def rotate(x_BHTK: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the channel pairs (i, i + R/2) of the first R channels by angles proportional to the position.

    Computed in float32, like the tables; returned in the dtype of `x`.
    """
    rotated = rotation.cos_TR.shape[-1]
    if rotated < x_BHTK.shape[-1]:
        kept = x_BHTK[..., rotated:]
        return torch.cat((_turn(x_BHTK[..., :rotated], rotation), kept), dim=-1)
    return _turn(x_BHTK, rotation)


def frequencies(config: RopeConfig, head_dim: int, device: torch.device | None = None) -> tuple[Tensor, float]:
    """Return the angle per position of each pair (F,), float32, and the factor for cosines and sines."""
    size = int(head_dim * config.partial)
    powers_F = config.theta ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    match config.scaling:
        case None:
            return 1.0 / powers_F, 1.0
        case LinearScaling(factor=factor):
            return (1.0 / powers_F) / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(1.0 / powers_F, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(powers_F, scaling, config.theta, size)


def _rotation(config: RopeConfig, head_dim: int, positions_T: Tensor) -> Rotation:
    frequencies_F, factor = frequencies(config, head_dim, positions_T.device)
    angles_TF = positions_T[:, None].float() * frequencies_F
    angles_TR = torch.cat((angles_TF, angles_TF), dim=-1)
    return Rotation(angles_TR.cos() * factor, angles_TR.sin() * factor)


def _turn(x_BHTR: Tensor, rotation: Rotation) -> Tensor:
    first, second = x_BHTR.chunk(2, dim=-1)
    turned = x_BHTR * rotation.cos_TR + torch.cat((-second, first), dim=-1) * rotation.sin_TR
    return turned.to(x_BHTR.dtype)


def _llama3(plain_F: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Scale frequencies like Llama 3.1's `apply_scaling`, which its model card describes."""
    wavelengths_F = 2 * math.pi / plain_F
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share_F = (scaling.old_length / wavelengths_F - low) / (high - low)
    between_F = (1 - share_F) * plain_F / scaling.factor + share_F * plain_F
    is_long_F, is_short_F = wavelengths_F > scaling.old_length / low, wavelengths_F < scaling.old_length / high
    # If the factors are swapped, a wavelength can be both long and short; like transformers, divide it.
    return torch.where(is_long_F, plain_F / scaling.factor, torch.where(is_short_F, plain_F, between_F))


def _yarn(powers_F: Tensor, scaling: YarnScaling, theta: float, size: int) -> tuple[Tensor, float]:
    """Scale frequencies with YaRN. Source: Peng et al. 2023, sections 3.2 and 3.4; ramp ends as in transformers."""
    low = scaling.channel(scaling.beta_fast, theta, size)
    high = scaling.channel(scaling.beta_slow, theta, size)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    ramp_F = ((torch.arange(len(powers_F), dtype=torch.float32, device=powers_F.device) - low) / width).clamp(0, 1)
    kept_F = 1 - ramp_F
    stretched_F = 1.0 / (scaling.factor * powers_F) * (1 - kept_F) + 1.0 / powers_F * kept_F
    factor = scaling.attention_factor
    return stretched_F, factor if factor is not None else _yarn_factor(scaling.factor)


def _yarn_factor(factor: float) -> float:
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
