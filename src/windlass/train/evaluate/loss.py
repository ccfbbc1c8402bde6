"""Mean loss of a model over held-out rows: the same number, to the last bit, on any number of data-parallel processes.

Batches are the same whatever the number of processes; each is computed by one of them, and the sums of all batches are
added without rounding, in float64, by every process alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from windlass.train.batch import Batch
from windlass.train.evaluate.rows import HeldOut
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EvalLoss", "Evaluated", "evaluate"]


class Evaluated(Protocol):
    """What gives losses: a train module, or anything with this method."""

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        """Sums `loss` (summed over labels, not divided) and `weight` (labels that count)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalLoss:
    """What an evaluation found.

    Attributes:
        loss: nats for each label that counts.
        num_labels: how many counted.
    """

    name: str
    loss: float
    num_labels: int

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is too large for a number."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    module: Evaluated, held_out: HeldOut, world: World, *, should_stop: Callable[[], bool] = lambda: False
) -> EvalLoss | None:
    """Loss over all rows; None where it was asked to stop. Collective: all processes call it together.

    Args:
        should_stop: asked before each batch; must answer the same on all processes.

    Raises:
        ValueError: no label counts.
    """
    share = world.share
    losses, weights = [], []
    for first in range(0, held_out.num_batches, share.world):
        if should_stop():
            return None
        found = module.eval_batch(held_out.batch(first + share.rank))
        losses.append(found["loss"].double())
        weights.append(found["weight"].double())
    sums = _gathered(torch.stack([torch.stack(losses), torch.stack(weights)]).cpu(), held_out.num_batches, world)
    loss, weight = (math.fsum(values) for values in sums)
    if not weight:
        raise ValueError(f"no label counts in {held_out.name}")
    return EvalLoss(name=held_out.name, loss=loss / weight, num_labels=round(weight))


def _gathered(mine: Tensor, num_batches: int, world: World) -> list[list[float]]:
    """Losses and weights of all batches, in order, on every process: each adds zeros for those of others."""
    share = world.share
    everyone = torch.zeros(2, mine.shape[1] * share.world, dtype=torch.float64)
    everyone[:, share.rank :: share.world] = mine
    replicas = world.size // share.world
    total = world.sum_on_host(everyone.flatten().tolist())
    rows = torch.tensor(total, dtype=torch.float64).view(2, -1)[:, :num_batches] / replicas
    found: list[list[float]] = rows.tolist()
    return found
