"""Collation of rows into the tensors of a batch.

Legend: B rows, T tokens of a row, S tokens of a full row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from windlass.train.batch import IGNORE, Batch
from windlass.train.data.corpus import Corpus
from windlass.train.data.rows import RowTable
from windlass.train.errors import TrainingError

__all__ = ["Collator", "RowPlace"]


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Full row, by its index in the epoch, its source, and its index in the source."""

    index: int
    source: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """Builder of batches from the corpora of all sources.

    Attributes:
        length: tokens of a full row.
        pad_id: id that pads rows.
        has_documents: whether batches state the document of each token.
        vocab_size: ids at or above it are rejected.
    """

    corpora: Sequence[Corpus]
    tables: Sequence[RowTable]
    length: int
    pad_id: int
    has_documents: bool
    vocab_size: int

    def batch(
        self, places: Sequence[RowPlace], *, width: int, cuts: Sequence[tuple[int, int]] | None, num_rows_step: int
    ) -> Batch:
        """Collate a batch of full rows or of their cuts.

        Args:
            width: tokens to keep of each row, or tokens per cut.
            cuts: (index in `places`, index of the cut) for each row of the batch; if None, full rows, cut to `width`.
            num_rows_step: rows of a microbatch.
        """
        full = self._fill(places)
        if cuts is None:
            tokens_BT, labels_BT, documents_BT = (array_BS[:, :width] for array_BS in full)
            rows = tuple(place.index for place in places)
        else:
            number_B, cut_B = np.array(cuts, dtype=np.int64).reshape(-1, 2).T
            pick = (number_B[:, None], cut_B[:, None] * width + np.arange(width))
            tokens_BT, labels_BT, documents_BT = (array_BS[pick] for array_BS in full)
            ratio = self.length // width
            rows = tuple(places[number].index * ratio + cut for number, cut in cuts)
        labels_BT = np.concatenate((labels_BT[:, 1:], np.full((len(rows), 1), IGNORE)), axis=1)
        documents_BT = documents_BT - documents_BT[:, :1]
        return Batch(
            tokens_BT=torch.from_numpy(np.ascontiguousarray(tokens_BT)),
            labels_BT=torch.from_numpy(labels_BT),
            documents_BT=torch.from_numpy(documents_BT) if self.has_documents else None,
            rows=rows,
            num_rows_step=num_rows_step,
        )

    def _fill(self, places: Sequence[RowPlace]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens, labels (not shifted yet) and document numbers of full rows."""
        shape = (len(places), self.length)
        tokens_BS: np.ndarray = np.full(shape, self.pad_id, dtype=np.int64)
        documents_BS: np.ndarray = np.zeros(shape, dtype=np.int32)
        ignored: list[tuple[int, slice | np.ndarray]] = []
        for number, place in enumerate(places):
            corpus, table = self.corpora[place.source], self.tables[place.source]
            end = document = 0
            for start, count in table.pieces(place.row):
                begin, end = end, end + count
                corpus.read(start, tokens_BS[number, begin:end])
                if corpus.has_mask:
                    ignored.append((number, begin + _left_out(corpus, start, count)))
                if not table.is_joined:
                    ignored.append((number, slice(begin, begin + 1)))
                if self.has_documents:
                    document = self._number(corpus, start, documents_BS[number, begin:end], document)
            if end < self.length:
                ignored.append((number, slice(end, None)))
                documents_BS[number, end:] = document
        self._check(tokens_BS, places)
        labels_BS = tokens_BS.copy()
        for number, where in ignored:
            labels_BS[number, where] = IGNORE
        return tokens_BS, labels_BS, documents_BS

    def _number(self, corpus: Corpus, start: int, documents_T: np.ndarray, first: int) -> int:
        """Number the documents in a piece, starting with `first`; return the next free number."""
        ends_D = corpus.ends
        low = int(np.searchsorted(ends_D, start, side="right"))
        high = int(np.searchsorted(ends_D, start + len(documents_T), side="left"))
        documents_T[:] = first
        for end in ends_D[low:high]:
            documents_T[end - start :] += 1
        return int(documents_T[-1]) + 1

    def _check(self, tokens_BS: np.ndarray, places: Sequence[RowPlace]) -> None:
        if (
            not len(places) or tokens_BS.view(np.uint64).max() < self.vocab_size
        ):  # as unsigned numbers, negative ids are very large
            return
        number, column = divmod(int(tokens_BS.view(np.uint64).argmax()), self.length)
        place = places[number]
        corpus = self.corpora[place.source]
        for start, count in self.tables[place.source].pieces(place.row):
            if column < count:
                raise TrainingError(
                    f"{corpus.where(start + column)} has token {tokens_BS[number, column]}; the vocabulary has {self.vocab_size}",
                    hint="use the tokenizer and dtype of the file, or raise `model.vocab_size`",
                    code="tokenizer-mismatch",
                )
            column -= count


def _left_out(corpus: Corpus, start: int, count: int) -> np.ndarray:
    """Return the positions in a piece that are excluded from the loss."""
    counts_T: np.ndarray = np.empty(count, dtype=bool)
    corpus.read_mask(start, counts_T)
    return np.flatnonzero(~counts_T)
