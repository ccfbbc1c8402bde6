"""Interface for train modules: a model with its loss and optimizer, on this process's part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["HasComponents", "StepFacts", "TrainModule"]

T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts about a step that are known before it begins.

    Attributes:
        step: number of the step, from 1.
        tokens: tokens of all previous steps.
        total_weight: sum of `weigh` over all data-parallel processes, by which the loss is divided; of the first
            component if there are several.
        total_weights: the same for every loss component.
        lr_factor: share of each group's peak learning rate.
    """

    step: int
    tokens: int
    total_weight: float
    total_weights: tuple[float, ...] = ()
    lr_factor: float


@runtime_checkable
class HasComponents(Protocol):
    """Optional interface of modules whose loss has several components, each divided by its own global weight."""

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components, in the order of their weights."""


class TrainModule(Protocol[T_contra]):
    """Model with its loss and optimizer.

    Metrics are device tensors, which are read only when collected.
    """

    @property
    def model(self) -> torch.nn.Module:
        """Model that is trained."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer that updates the model."""

    def weigh(self, batch: T_contra) -> float | tuple[float, ...]:
        """Return the weight of this batch, such as its number of labels that are not IGNORE; no device sync.

        A module with several loss components (`HasComponents`) returns one weight for each.
        """

    def count(self, batch: T_contra) -> int:
        """Return the number of tokens (or samples) in this batch, including padding, for durations in tokens."""

    def train_batch(self, batch: T_contra, facts: StepFacts) -> Mapping[str, Tensor]:
        """Run forward and backward on all microbatches; gradients are those of (sum of losses / facts.total_weight).

        Returns:
            Sums over this process's share, already divided by `facts.total_weight`: their sum over processes is the
            batch's mean. `loss` is among them.
        """

    def optim_step(self, facts: StepFacts) -> Mapping[str, Tensor]:
        """Clip gradients, take an optimizer step, and zero the gradients.

        Returns values that are equal on all processes, such as `grad_norm` and `skipped`.
        """

    def eval_batch(self, batch: T_contra) -> Mapping[str, Tensor]:
        """Return the sum of losses as `loss` and the sum of weights as `weight`, without computing gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Return {"model": {name: tensor}, "optim": {name.state: tensor}} under plain names, with DTensors if sharded."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state in the form of `state_dict`, which the checkpoint filled in place; `optim` may be missing."""

    def flops(self, batch: T_contra) -> float:
        """Return the forward and backward FLOPs for this batch, or 0 if unknown."""
