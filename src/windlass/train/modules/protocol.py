"""Interface of modules: a model with its loss and optimizer, on this process's share of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["StepFacts", "TrainModule"]

T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts about a step that are known before it begins.

    Attributes:
        step: number of the step, 1 for the first.
        tokens: tokens of all steps before.
        total_weight: what `weigh` gave, summed over all data-parallel processes: the loss is divided by it.
        lr_factor: share of each group's peak learning rate.
    """

    step: int
    tokens: int
    total_weight: float
    lr_factor: float


class TrainModule(Protocol[T_contra]):
    """A model, its loss and its optimiser. All metrics are device tensors, not read before they are collected."""

    @property
    def model(self) -> torch.nn.Module:
        """The model as it is trained."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimiser."""

    def weigh(self, batch: T_contra) -> float:
        """Return the weight of this batch, such as its number of labels that are not IGNORE; no device sync."""

    def count(self, batch: T_contra) -> int:
        """Tokens (or samples) of this batch, padding too: what durations in tokens count."""

    def train_batch(self, batch: T_contra, facts: StepFacts) -> Mapping[str, Tensor]:
        """Forward and backward, all microbatches. Gradients are those of (sum of losses / facts.total_weight).

        Returns:
            Sums over this process's share, already divided by `facts.total_weight`: their sum over processes is the
            batch's mean. `loss` is among them.
        """

    def optim_step(self, facts: StepFacts) -> Mapping[str, Tensor]:
        """Clip, step, zero the gradients. Returns values equal on all processes: `grad_norm`, `skipped`, ..."""

    def eval_batch(self, batch: T_contra) -> Mapping[str, Tensor]:
        """Without gradients: sums `loss` (summed, not divided) and `weight`."""

    def state_dict(self) -> dict[str, Any]:
        """{"model": {name: tensor}, "optim": {name.state: tensor}} by plain names of parameters, DTensors where sharded."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state of the same form, filled in place by the checkpoint; `optim` may be missing."""

    def flops(self, batch: T_contra) -> float:
        """Floating point operations of forward and backward of this batch; 0 where unknown."""
