"""NorMuon: Muon with steps of about equal size for all rows, the neurons.

Legend: M rows and N columns of a matrix; leading dims are a stack of matrices (experts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from windlass.train.optim.local import local_part
from windlass.train.optim.muon import Muon

__all__ = ["NorMuon", "row_means"]

_RMS = 0.2
"""Root mean square of an update, similar to AdamW's."""


class NorMuon(Muon):
    """Muon with updates normalized by row.

    o = orthogonal(momentum); v = lerp(v, row means of o**2, 1 - row_beta); p -= lr * (c * o / (sqrt(v) + eps) + decay
    * p).

    c makes the root mean square of the update 0.2, whatever the shape. Each process keeps v of its rows; only one norm
    per matrix is summed over processes.

    Args:
        row_beta: decay of the second moment of rows.
    Source: Li et al. 2025, "NorMuon: making Muon more efficient and scalable", arXiv 2510.05491, algorithm 1.
    """

    def __init__(self, params: Iterable[Any], *, row_beta: float = 0.95, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:
            group.setdefault("row_beta", row_beta)

    def ensure_state(self) -> None:
        """Initialize the state that parameters lack."""
        super().ensure_state()
        for group in self.param_groups:
            for parameter in group["params"] if group["algorithm"] == "muon" else ():
                if "row_moment" not in self.state[parameter]:
                    self.state[parameter]["row_moment"] = row_means(torch.zeros_like(parameter))

    def _scaled(self, moved: Sequence[Tensor], updates: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        return [self._normalised(parameter, update, group) for parameter, update in zip(moved, updates, strict=True)]

    def _normalised(self, parameter: Tensor, update: Tensor, group: dict[str, Any]) -> Tensor:
        whole_SMN = _like(update, parameter)
        moment_SM1 = self.state[parameter]["row_moment"]
        change_SM1 = (row_means(whole_SMN.square()) - moment_SM1) * (1.0 - group["row_beta"])
        if self.found_inf is not None:
            change_SM1 = change_SM1 * (1.0 - self.found_inf)
        moment_SM1.add_(change_SM1)
        eps: float = group["eps"]
        local = update / (local_part(moment_SM1).sqrt() + eps)
        squares_S11 = _like(local, parameter).square().sum(dim=(-2, -1), keepdim=True)
        norm_S11 = local_part(_settled(squares_S11)).sqrt().clamp(min=eps)
        return local * (_RMS * math.sqrt(parameter.shape[-2] * parameter.shape[-1]) / norm_S11)


def row_means(matrix_SMN: Tensor) -> Tensor:
    """Return the mean of each row, (S, M, 1), sharded like the rows."""
    return _settled(matrix_SMN.mean(dim=-1, keepdim=True))


def _settled(tensor: Tensor) -> Tensor:
    """Complete pending sums over processes. Collective if there are any."""
    if not isinstance(tensor, DTensor):
        return tensor
    places = [Replicate() if place.is_partial() else place for place in tensor.placements]
    done: DTensor = tensor.redistribute(tensor.device_mesh, places)
    return done


def _like(local: Tensor, parameter: Tensor) -> Tensor:
    """Return a local part as a tensor that is sharded like its parameter."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
