"""Dion: low-rank orthonormal updates, with one power iteration per step and error feedback.

Legend: M rows and N columns of a matrix, R rank; leading dims are a stack of matrices (experts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from windlass.train.optim.local import local_part
from windlass.train.optim.muon import Muon

__all__ = ["Dion"]

_EPS = 1e-8


class Dion(Muon):
    """Optimizer with low-rank orthonormal updates.

    b = m + g; p = orthonormal(b q); r = b^T p; m = b - (1 - momentum) p r^T; q = r with columns scaled to length 1.

    Weights move by -lr * (sqrt(M / N) * p q^T + decay * w). DTensor computes products of sharded matrices, so only
    (M, R) and (N, R) go over the network. AdamW updates the rest, as with Muon.

    Args:
        rank_share: R as a share of the shorter side of a matrix.
    Source: Ahn et al. 2025, "Dion: distributed orthonormalized updates", arXiv 2504.05295, algorithm 1 (without
        sharding) and section 3.
    """

    def __init__(self, params: Iterable[Any], *, rank_share: float = 1.0, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:
            group.setdefault("rank_share", rank_share)

    def ensure_state(self) -> None:
        """Initialize the state that parameters lack; a matrix's first q depends only on its shape."""
        super().ensure_state()
        for group in self.param_groups:
            for parameter in group["params"] if group["algorithm"] == "muon" else ():
                if "right" not in self.state[parameter]:
                    self.state[parameter]["right"] = _first_right(parameter, group["rank_share"])

    def _move_matrices(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in moved:
            assert parameter.grad is not None
            self._move(parameter, parameter.grad, self.state[parameter], group)

    def _move(self, parameter: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        momentum, right = state["momentum_buffer"], state["right"]
        buffer = momentum + grad
        left = _spread_as(torch.linalg.qr(_whole(buffer @ right)).Q, parameter)
        product = _whole(buffer.mT @ left)
        length = product.norm(dim=-2, keepdim=True)
        is_seen = length > _EPS
        columns = _spread_as(torch.where(is_seen, product / length.clamp(min=_EPS), 0.0), parameter)
        kept = torch.where(is_seen, local_part(columns), local_part(right))  # a direction without gradient is unchanged
        rest = (1.0 - group["momentum"]) * (left @ _spread_as(product, parameter).mT)
        scale = math.sqrt(parameter.shape[-2] / parameter.shape[-1])
        step = (
            local_part(_as_placed(left @ columns.mT, parameter)) * scale + local_part(parameter) * group["weight_decay"]
        )
        left_out = local_part(buffer) - local_part(_as_placed(rest, parameter))
        if self.found_inf is not None:
            step = step * (1.0 - self.found_inf)
            left_out = torch.where(self.found_inf > 0, local_part(momentum), left_out)
            kept = torch.where(self.found_inf > 0, local_part(right), kept)
        local_part(momentum).copy_(left_out)
        local_part(right).copy_(kept)
        local_part(parameter).add_(step, alpha=-group["lr"])


def _first_right(parameter: Tensor, rank_share: float) -> Tensor:
    """Return random orthonormal columns, which are identical on every process."""
    *stack, rows, columns = parameter.shape
    rank = max(1, round(rank_share * min(rows, columns)))
    generator = torch.Generator().manual_seed(1_000_003 * rows + columns)
    made = torch.linalg.qr(torch.randn(*stack, columns, rank, generator=generator)).Q
    return _spread_as(made.to(parameter.device, parameter.dtype), parameter)


def _spread_as(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor replicated over the processes that shard a parameter."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    return DTensor.from_local(whole.contiguous(), mesh, [Replicate()] * mesh.ndim, run_check=False)


def _whole(tensor: Tensor) -> Tensor:
    """Return a whole tensor, gathered or summed from all processes. Collective."""
    if not isinstance(tensor, DTensor):
        return tensor
    found: Tensor = tensor.full_tensor()
    return found


def _as_placed(tensor: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor) or not isinstance(parameter, DTensor):
        return tensor
    done: DTensor = tensor.redistribute(parameter.device_mesh, parameter.placements)
    return done
