"""Train module for any model with a custom loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windlass.train.modules.protocol import StepFacts
from windlass.train.modules.state import load_training_state, training_state
from windlass.train.optim.build import set_lr
from windlass.train.optim.clip import clip
from windlass.train.parallel.apply import parallelize, replicas_of
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.world import World
from windlass.train.randomness import seed_for, seed_generators

__all__ = ["BasicModule"]

T = TypeVar("T")


class BasicModule(Generic[T]):
    """Train module with a model, an optimizer, and a loss over batches of any kind.

    With several processes, each holds the whole model and gradients are summed, unless `parallelize` was applied to
    the model before.

    Args:
        model: trained as is; on the device of `world`.
        optimizer: optimizer of its parameters; its learning rates are the peaks.
        loss_fn: called with model and batch; returns the sum of the losses of this process's samples, a scalar with
            gradient, and their total weight.
        weigh: returns the weight of a batch, on the host and without a forward pass; by default its number of samples.
        count: returns the number of samples in a batch; by default the length of its first tensor.
        max_grad_norm: norm to which gradients are clipped; if None, they are not clipped.
        seed: seed of the model's random numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable[[nn.Module, T], tuple[Tensor, Tensor | float]],
        *,
        weigh: Callable[[T], float] | None = None,
        count: Callable[[T], int] | None = None,
        max_grad_norm: float | None = None,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.world = world or World(device=torch.device("cpu"))
        self.max_grad_norm, self.seed = max_grad_norm, seed
        self._count, self._weigh = count or _num_samples, weigh
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])
        if self.world.size > 1 and not is_spread(model):
            parallelize(model, ParallelConfig(data="ddp"), self.world)

    def weigh(self, batch: T) -> float:
        """Return the number by which the loss on this batch is divided."""
        return float(self._count(batch)) if self._weigh is None else self._weigh(batch)

    def count(self, batch: T) -> int:
        """Return the number of samples in this batch."""
        return self._count(batch)

    def train_batch(self, batch: T, facts: StepFacts) -> Mapping[str, Tensor]:
        """Run forward and backward; the gradients are those of the mean over all processes."""
        rank = self.world.share.rank
        seed_generators(seed_for(self.seed, facts.step, rank), self.world.device)
        self.model.train()
        loss, _ = self.loss_fn(self.model, batch)
        mean = loss / facts.total_weight
        mean.backward()
        return {"loss": mean.detach()}

    def optim_step(self, facts: StepFacts) -> Mapping[str, Tensor]:
        """Clip gradients, take an optimizer step, and zero the gradients."""
        norm = clip(self.model.parameters(), self.max_grad_norm)
        set_lr(self.optimizer, facts.lr_factor)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

    def eval_batch(self, batch: T) -> Mapping[str, Tensor]:
        """Return the sums of losses and of weights, without computing gradients."""
        self.model.eval()
        with torch.no_grad():
            loss, weight = self.loss_fn(self.model, batch)
        return {"loss": loss, "weight": torch.as_tensor(weight, dtype=torch.float32, device=loss.device)}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimizer's state, by parameter name."""
        return training_state(self.model, self.optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights and the optimizer's state."""
        load_training_state(self.model, self.optimizer, state)

    def flops(self, batch: T) -> float:
        """Return 0, because the model's FLOPs are unknown."""
        return 0.0


def is_spread(model: nn.Module) -> bool:
    """Return whether `parallelize` has been applied to this model."""
    return replicas_of(model) is not None or any(isinstance(weight, DTensor) for weight in model.parameters())


def _num_samples(batch: object) -> int:
    """Return the length of the first tensor found in a tensor, mapping or sequence."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]  # type: ignore[index]
    return len(batch)
