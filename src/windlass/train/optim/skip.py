"""Skipping of steps whose loss or gradient norm is an outlier, decided on the device without a host sync.

Legend: W steps in the window; 2: loss and norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from windlass.train.optim.lion import Lion
from windlass.train.optim.muon import Muon

if TYPE_CHECKING:
    from windlass.train.optim.config import SkipConfig

__all__ = ["SkipGuard", "guarded_step"]

LEAST_SPREAD: Final = 1e-6
"""Minimum standard deviation as a share of the mean, so that a flat history tolerates changes."""


class SkipGuard:
    """Record of the loss and gradient norm in recent steps, which flags outliers above them.

    Nothing is skipped before half a window is recorded, except non-finite values, which are always skipped and not
    recorded. Other skipped steps are recorded, so that a lasting change of level is eventually accepted.

    Args:
        config: window and threshold.
        device: device of the values.
        reduce: sums a loss over data-parallel processes in place; None if it is already summed.
    Source: the spike rule of OLMo 2 (OLMo et al. 2024, section 3.4), here with both values and without a host sync.
    """

    def __init__(
        self, config: SkipConfig, device: torch.device, reduce: Callable[[Tensor], object] | None = None
    ) -> None:
        self.config, self._reduce = config, reduce
        self._past_W2 = torch.zeros((config.window, 2), dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return 1.0 if this step must be skipped, else 0.0; a float32 scalar, equal on all processes.

        Collective if `reduce` is set.
        """
        with torch.no_grad():
            total = loss.detach().to(torch.float64, copy=True)
            if self._reduce is not None:
                self._reduce(total)
            now_2 = torch.stack((total, norm.detach().to(total)))
            is_number = now_2.isfinite().all()
            is_far = (now_2 > self._limits()).any() & (self._count >= max(2, self.config.window // 2))
            self._remember(now_2, is_number)
            return (is_far | ~is_number).float()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the history, which is equal on all processes and which a checkpoint can fill in place."""
        return {"past": self._past_W2, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history; a history for a different window is dropped."""
        if tuple(state["past"].shape) != tuple(self._past_W2.shape):
            return
        self._past_W2.copy_(state["past"])
        self._count.copy_(state["count"])

    def _limits(self) -> Tensor:
        is_known_W1 = (torch.arange(self.config.window, device=self._count.device) < self._count)[:, None]
        num = self._count.clamp(min=2, max=self.config.window)
        mean_2 = (self._past_W2 * is_known_W1).sum(dim=0) / num
        variance_2 = ((self._past_W2 - mean_2).square() * is_known_W1).sum(dim=0) / (num - 1)
        return mean_2 + self.config.sigmas * torch.maximum(variance_2.sqrt(), LEAST_SPREAD * mean_2.abs())

    def _remember(self, now_2: Tensor, is_number: Tensor) -> None:
        place = (self._count % self.config.window).reshape(1)
        old_12 = self._past_W2.index_select(0, place)
        self._past_W2.index_copy_(0, place, torch.where(is_number, now_2, old_12))
        self._count += is_number


def guarded_step(optimizer: Optimizer, skipped: Tensor) -> None:
    """Take an optimizer step that leaves weights and state unchanged if `skipped` is 1.

    On a GPU, kernels read `skipped` themselves; for an unfused AdamW or a custom optimiser, the host waits
    for it.
    """
    if skipped.device.type != "cpu" and _can_look(optimizer):
        step_unless(optimizer, skipped)
    elif not bool(skipped):
        optimizer.step()


def step_unless(optimizer: Optimizer, skipped: Tensor) -> None:
    """Take a step whose kernels read `skipped`, for optimizers with `found_inf`."""
    vars(optimizer)["found_inf"] = skipped
    try:
        optimizer.step()
    finally:
        del vars(optimizer)["found_inf"]


def _can_look(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, Lion):
        return True
    key = "is_fused" if isinstance(optimizer, Muon) else "fused"
    return isinstance(optimizer, (AdamW, Muon)) and all(group[key] for group in optimizer.param_groups)
