"""Held-out rows in fixed batches, which do not depend on the number of processes.

Legend: B rows of a batch, T tokens of a row, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from windlass.core.errors import Problem, SpecError
from windlass.train.batch import IGNORE, Batch
from windlass.train.data.collate import Collator, RowPlace
from windlass.train.data.config import AnySource, DataConfig
from windlass.train.data.corpus import Corpus
from windlass.train.data.inputs import source_name
from windlass.train.data.opening import manifests_of, open_corpus, special_ids
from windlass.train.data.rows import RowTable, cut_rows

__all__ = ["HeldOut", "WholeChunks", "open_held_out"]

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
