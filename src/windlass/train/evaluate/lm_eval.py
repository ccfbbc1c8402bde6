"""Callback `lm-eval`, which computes loss and perplexity on held-out sources during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from windlass import report
from windlass.train.batch import Batch
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.duration import Duration
from windlass.train.evaluate.rows import HeldOut, open_held_out
from windlass.train.parallel.world import World
from windlass.train.progress import is_due

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.train.callbacks.config import LMEvalConfig
    from windlass.train.data.config import DataConfig

__all__ = ["EvalLoss", "Evaluated", "LMEval", "Moment", "PeriodicEvaluation", "evaluate", "lm_eval_callback"]


class Evaluated(Protocol):
    """Interface of objects that compute losses, such as a train module."""

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sum of losses as `loss` and the number of counted labels as `weight`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalLoss:
    """Loss measured by an evaluation.

    Attributes:
        loss: nats per counted label.
        num_labels: number of counted labels.
    """

    name: str
    loss: float
    num_labels: int

    @property
    def perplexity(self) -> float:
        """Return exp(loss), or infinity on overflow."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    module: Evaluated, held_out: HeldOut, world: World, *, should_stop: Callable[[], bool] = lambda: False
) -> EvalLoss | None:
    """Compute the loss over all rows; return None if stopped. Collective.

    Args:
        should_stop: called before each batch; must return the same on all processes.

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
        raise ValueError(f"{held_out.name} has no labels to evaluate")
    return EvalLoss(name=held_out.name, loss=loss / weight, num_labels=round(weight))


def _gathered(mine: Tensor, num_batches: int, world: World) -> list[list[float]]:
    """Gather the losses and weights of all batches, in order.

    Each process adds zeros for the batches of others.
    """
    share = world.share
    everyone = torch.zeros(2, mine.shape[1] * share.world, dtype=torch.float64)
    everyone[:, share.rank :: share.world] = mine
    replicas = world.size // share.world
    total = world.sum_on_host(everyone.flatten().tolist())
    rows = torch.tensor(total, dtype=torch.float64).view(2, -1)[:, :num_batches] / replicas
    found: list[list[float]] = rows.tolist()
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """Position in training."""

    step: int = 0
    tokens: int = 0
    epoch: int = 0


class PeriodicEvaluation(TrainerCallback):
    """Base class for evaluations at regular intervals and at the end.

    Args:
        every: length between evaluations; if None, evaluate only at the end.
        at_start: whether to evaluate before the first step.
    """

    priority = -10  # after callbacks that change the model, before the checkpointer

    def __init__(self, *, every: Duration | None = None, at_start: bool = False) -> None:
        self.every, self.at_start = every, at_start
        self._before = Moment()

    def measure(self) -> Mapping[str, float] | None:
        """Return metrics by name, equal on all processes, or None if stopped. Collective."""
        raise NotImplementedError

    def on_start(self) -> None:
        """Start counting intervals at the current position."""
        self._before = self._moment()
        if self.at_start and self.trainer.step == 0:
            self._run()

    def on_step_end(self) -> None:
        """Evaluate the model if an evaluation is due."""
        before, now = self._before, self._moment()
        self._before = now
        is_time = self.every is not None and is_due(self.every, before, now)
        if is_time or self.trainer.is_complete:
            self._run()

    def _run(self) -> None:
        report.progress("eval", step=self.trainer.step)
        for name, value in (self.measure() or {}).items():
            self.trainer.record(name, value, "none")
        report.progress("step", step=self.trainer.step)

    def _moment(self) -> Moment:
        return Moment(self.trainer.step, self.trainer.tokens, self.trainer.epoch)


class LMEval(PeriodicEvaluation):
    """Callback that records `eval/NAME/loss` and `eval/NAME/perplexity` for held-out sources.

    A stop request ends the evaluation before the next batch; unfinished sources are not recorded.

    Attributes:
        found: results of the last finished evaluation, by name.
    """

    def __init__(self, sources: Sequence[HeldOut], *, every: Duration | None = None, at_start: bool = False) -> None:
        super().__init__(every=every, at_start=at_start)
        self.sources = tuple(sources)
        self.found: dict[str, EvalLoss] = {}

    def measure(self) -> Mapping[str, float] | None:
        """Return the loss on every source. Collective."""
        trainer = self.trainer
        metrics: dict[str, float] = {}
        for source in self.sources:
            loss = evaluate(trainer.module, source, trainer.world, should_stop=trainer.agree_on_stop)
            if loss is None:
                break
            self.found[source.name] = loss
            metrics |= {f"eval/{source.name}/loss": loss.loss, f"eval/{source.name}/perplexity": loss.perplexity}
        return metrics


def lm_eval_callback(config: LMEvalConfig, data: DataConfig, *, vocab_size: int) -> LMEval:
    """Build the callback, opening all sources, so that a missing file is found before training.

    Raises:
        SpecError, TrainingError: a source is missing, invalid or of another vocabulary.
    """
    sources = [
        open_held_out(name, source, data, vocab_size=vocab_size, max_tokens=config.max_tokens)
        for name, source in config.sources.items()
    ]
    return LMEval(sources, every=config.every, at_start=config.at_start)
