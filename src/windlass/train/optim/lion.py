"""Lion: steps along the sign of a momentum, with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from windlass.train.optim.local import local_grads, local_parts

__all__ = ["Lion"]


class Lion(Optimizer):
    """Optimizer that steps along the sign of a momentum.

    update = sign(b1 * m + (1 - b1) * g); p -= lr * (update + decay * p); m = b2 * m + (1 - b2) * g.

    Works on plain tensors and on DTensors, each process on its shard.

    Attributes:
        found_inf: tensor that is 1 if the step must be skipped, set by the skip guard; or None.
    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def ensure_state(self) -> None:
        """Initialize the momentum that parameters lack."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            loss = closure()
        with torch.no_grad():
            self.ensure_state()
            for group in self.param_groups:
                moved = [parameter for parameter in group["params"] if parameter.grad is not None]
                if moved:
                    self._move(moved, group)
        return loss

    def _move(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        weights, grads = local_parts(moved), local_grads(moved)
        momenta = local_parts(self.state[parameter]["exp_avg"] for parameter in moved)
        (first, second), lr = group["betas"], group["lr"]
        if self.found_inf is not None:
            grads = [torch.where(self.found_inf > 0, old, new) for old, new in zip(momenta, grads, strict=True)]
        updates = torch._foreach_lerp(momenta, grads, 1.0 - first)
        torch._foreach_sign_(updates)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if self.found_inf is not None:
            torch._foreach_mul_(updates, 1.0 - self.found_inf)
        torch._foreach_add_(weights, updates, alpha=-lr)
        torch._foreach_lerp_(momenta, grads, 1.0 - second)
