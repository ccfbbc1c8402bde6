"""Muon: orthogonalised momentum for matrices, AdamW for the rest, for plain and sharded parameters.

Legend: M rows and N columns of a matrix; leading dims are a stack of matrices (experts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from windlass.train.optim.local import local_grads, local_part, local_parts
from windlass.train.optim.matrices import orthogonal_updates

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Muon", "update_scale"]


class Muon(Optimizer):
    """Optimizer that orthogonalises the momentum of matrices.

    buffer = lerp(buffer, g, 1 - momentum); p -= lr * (scale * orthogonal(buffer, looked ahead) + decay * p).

    Each group's `algorithm` is muon (2-D parameters, and 3-D stacks of matrices) or adamw. Each sharded matrix is gathered
    on one process, orthogonalised and scattered, so that the work is divided between processes.

    Args:
        is_fused: whether AdamW uses a fused kernel; else one tensor at a time, bit-identical for any sharding.
        replicas: processes with identical plain parameters (DDP), which share the work on their matrices.

    Attributes:
        found_inf: tensor that is 1 if the step must be skipped, set by the skip guard (fused only); or None.
    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers"; the rms scale: Liu et al. 2025, "Muon is scalable
        for LLM training", equation 4.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        is_nesterov: bool = True,
        num_iterations: int = 5,
        scale: str = "rms",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        is_fused: bool = True,
        replicas: ProcessGroup | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "algorithm": "muon",
            "momentum": momentum,
            "is_nesterov": is_nesterov,
            "num_iterations": num_iterations,
            "scale": scale,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "is_fused": is_fused,
        }
        super().__init__(params, defaults)
        self._replicas = replicas

    def ensure_state(self) -> None:
        """Initialize the state that parameters lack."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if state:
                    continue
                if group["algorithm"] == "muon":
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                else:
                    device = parameter.device if group["is_fused"] else torch.device("cpu")
                    state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient. Collective if sharded or with `replicas`."""
        loss = None
        if closure is not None:
            loss = closure()
        with torch.no_grad():
            self.ensure_state()
            for group in self.param_groups:
                moved = [parameter for parameter in group["params"] if parameter.grad is not None]
                if moved:
                    (self._move_matrices if group["algorithm"] == "muon" else self._move_rest)(moved, group)
        return loss

    def _move_matrices(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        weights, grads = local_parts(moved), local_grads(moved)
        buffers = local_parts(self.state[parameter]["momentum_buffer"] for parameter in moved)
        if self.found_inf is not None:
            grads = [torch.where(self.found_inf > 0, old, new) for old, new in zip(buffers, grads, strict=True)]
        torch._foreach_lerp_(buffers, grads, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"]) if group["is_nesterov"] else buffers
        updates = orthogonal_updates(moved, ahead, group["num_iterations"], self._replicas)
        updates = self._scaled(moved, updates, group)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if self.found_inf is not None:
            torch._foreach_mul_(updates, 1.0 - self.found_inf)
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _scaled(self, moved: Sequence[Tensor], updates: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Scale orthogonal updates by a factor that depends on their shape."""
        torch._foreach_mul_(updates, [update_scale(parameter.shape, group["scale"]) for parameter in moved])
        return updates

    def _move_rest(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in moved]
        adamw(
            local_parts(moved),
            local_grads(moved),
            local_parts(state["exp_avg"] for state in states),
            local_parts(state["exp_avg_sq"] for state in states),
            [],
            [local_part(state["step"]) for state in states],
            foreach=False,
            fused=group["is_fused"],
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def update_scale(shape: tuple[int, ...] | torch.Size, kind: str) -> float:
    """Return the factor for an orthogonal update of this shape."""
    rows, columns = shape[-2], shape[-1]
    if kind == "spectral":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
