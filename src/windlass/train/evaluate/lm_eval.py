"""Callback `lm-eval`, which computes loss and perplexity on held-out sources during training.

Held-out rows come in fixed batches, independent of the number of processes.

Legend: B rows of a batch, T tokens of a row, N rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from windlass import report
from windlass.core.errors import Problem, SpecError
from windlass.train.batch import IGNORE, Batch
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.data.collate import Collator, RowPlace
from windlass.train.data.config import AnySource, DataConfig
from windlass.train.data.corpus import Corpus
from windlass.train.data.inputs import source_name
from windlass.train.data.opening import manifests_of, open_corpus, special_ids
from windlass.train.data.rows import RowTable, cut_rows
from windlass.train.duration import Duration
from windlass.train.parallel.world import World
from windlass.train.progress import is_due

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.train.callbacks.config import LMEvalConfig
    from windlass.train.data.config import DataConfig

__all__ = [
    "EvalLoss",
    "Evaluated",
    "HeldOut",
    "LMEval",
    "Moment",
    "PeriodicEvaluation",
    "WholeChunks",
    "evaluate",
    "lm_eval_callback",
    "open_held_out",
]

_BATCH_TOKENS = 16_384
"""Default tokens of a batch: small enough for any machine that can train the model."""


class WholeChunks:
    """Rows cut from all tokens in sequence, every `length` tokens; an incomplete last row is kept."""

    is_joined = True

    def __init__(self, num_tokens: int, length: int) -> None:
        self._num_tokens, self._length = num_tokens, length
        self.num_rows = -(-num_tokens // length)

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """Return a single piece, which may be short in the last row."""
        start = row * self._length
        return [(start, min(self._length, self._num_tokens - start))]

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Return the number of tokens in each row."""
        tokens_N: np.ndarray = np.minimum(self._length, self._num_tokens - row_N * self._length)
        return tokens_N


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Rows from a source in fixed batches, in order; the last batch is filled with rows that have no labels.

    Attributes:
        name: name in metrics.
        num_rows: number of rows with labels.
        rows_batch: rows per batch.
    """

    name: str
    collator: Collator
    num_rows: int
    rows_batch: int

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return -(-self.num_rows // self.rows_batch)

    def batch(self, number: int) -> Batch:
        """Return a batch.

        Past the end, the batch has no labels; processes that must stay in step use it.
        """
        first = number * self.rows_batch
        rows = [min(first + row, self.num_rows - 1) for row in range(self.rows_batch)]
        places = [RowPlace(row, 0, row) for row in rows]
        made = self.collator.batch(places, width=self.collator.length, cuts=None, num_rows_step=self.rows_batch)
        is_filling_B = torch.arange(first, first + self.rows_batch) >= self.num_rows
        return replace(made, labels_BT=made.labels_BT.masked_fill(is_filling_B[:, None], IGNORE))


def open_held_out(
    name: str, source: AnySource, data: DataConfig, *, vocab_size: int, max_tokens: int | None = None
) -> HeldOut:
    """Open the rows of a source, cut like those of the run's training data.

    Args:
        data: settings for tokenizer, length and layout of rows, and tokens per microbatch.
        max_tokens: take rows from the start up to this many tokens; if None, take all.

    Raises:
        SpecError: it is empty, or there is no tokenizer.
        TrainingError: a file is invalid or of another vocabulary.
    """
    corpus = open_corpus(source, data.tokenizer, vocab_size=vocab_size, cache=data.cache)
    length = data.sequence_length
    table = _table(corpus, data)
    if table.num_rows == 0:
        message = f"{source_name(source)} has no tokens to evaluate on"
        raise SpecError([Problem(message, "data-too-small", hint=f"set other files for `{name}`")])
    collator = Collator(
        corpora=[corpus],
        tables=[table],
        length=length,
        pad_id=special_ids(data.tokenizer, manifests_of([source])).pad_id,
        has_documents=data.mask_documents,
        vocab_size=vocab_size,
    )
    num_rows = table.num_rows if max_tokens is None else max(1, min(table.num_rows, max_tokens // length))
    tokens = min(data.microbatch_tokens or _BATCH_TOKENS, data.batch_tokens)
    return HeldOut(name=name, collator=collator, num_rows=num_rows, rows_batch=max(1, min(num_rows, tokens // length)))


def _table(corpus: Corpus, data: DataConfig) -> RowTable:
    if data.layout == "chunk":
        return WholeChunks(corpus.num_tokens, data.sequence_length)
    layout = "pad" if data.layout == "bucket" else data.layout
    return cut_rows(corpus, data.sequence_length, layout=layout, long_documents=data.long_documents)


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
