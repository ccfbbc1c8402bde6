"""Rows as pieces of a corpus: which tokens a row holds, by layout.

Legend: R rows, K pieces, D documents.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from windlass.train.data.corpus import Corpus
from windlass.train.data.packing import pack_documents

__all__ = ["ChunkRows", "PieceRows", "RowTable", "cut_rows"]

Layout = Literal["chunk", "pack", "pad", "bucket"]
LongDocuments = Literal["split", "truncate", "drop"]


class RowTable(Protocol):
    """The rows of one source."""

    @property
    def num_rows(self) -> int:
        """How many."""

    @property
    def is_joined(self) -> bool:
        """Whether the first token of a document is a label of the token before it."""

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """(start in the corpus, tokens) of what stands in a row, from its left; what is missing is padding."""

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Tokens of rows, without padding."""


class ChunkRows:
    """All tokens end to end, cut every `length`; what is left over at the end is no row."""

    is_joined = True

    def __init__(self, corpus: Corpus, length: int) -> None:
        self._length = length
        self.num_rows = corpus.num_tokens // length

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """One piece, a full row."""
        return [(row * self._length, self._length)]

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """All the same."""
        return np.full(len(row_N), self._length)


class PieceRows:
    """Rows that are made of whole documents, or of pieces of long ones.

    Args:
        starts_K: where each piece begins in the corpus.
        lengths_K: its tokens.
        offsets_R: row r has the pieces offsets_R[r] to offsets_R[r + 1].
    """

    is_joined = False

    def __init__(self, starts_K: np.ndarray, lengths_K: np.ndarray, offsets_R: np.ndarray) -> None:
        self._starts_K, self._lengths_K, self._offsets_R = starts_K, lengths_K, offsets_R
        self._ends_K = np.cumsum(np.concatenate(([0], lengths_K)))
        self.num_rows = len(offsets_R) - 1

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """The pieces of a row."""
        first, last = self._offsets_R[row], self._offsets_R[row + 1]
        return list(zip(self._starts_K[first:last].tolist(), self._lengths_K[first:last].tolist(), strict=True))

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Sums over the pieces of each row."""
        tokens_N: np.ndarray = self._ends_K[self._offsets_R[row_N + 1]] - self._ends_K[self._offsets_R[row_N]]
        return tokens_N


def cut_rows(corpus: Corpus, length: int, *, layout: Layout, long_documents: LongDocuments = "split") -> RowTable:
    """The rows of a corpus.

    Args:
        long_documents: what becomes of documents longer than a row, in every layout but chunk.
    """
    if layout == "chunk":
        return ChunkRows(corpus, length)
    starts_K, lengths_K = _document_pieces(corpus.ends, length, long_documents)
    if layout == "pack":
        order_K, offsets_R = pack_documents(lengths_K, length)
        return PieceRows(starts_K[order_K], lengths_K[order_K], offsets_R)
    return PieceRows(starts_K, lengths_K, np.arange(len(starts_K) + 1))


def _document_pieces(ends_D: np.ndarray, length: int, long_documents: LongDocuments) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of documents, of which none is longer than `length`; empty documents are none."""
    starts_D = np.concatenate((np.zeros(1, dtype=np.int64), ends_D[:-1]))
    lengths_D = ends_D - starts_D
    if long_documents == "truncate":
        lengths_D = np.minimum(lengths_D, length)
    is_kept_D = (lengths_D > 0) & (lengths_D <= length) if long_documents == "drop" else lengths_D > 0
    starts_D, lengths_D = starts_D[is_kept_D], lengths_D[is_kept_D]
    counts_D = -(-lengths_D // length)
    number_K = np.arange(int(counts_D.sum())) - np.repeat(np.cumsum(counts_D) - counts_D, counts_D)
    starts_K = np.repeat(starts_D, counts_D) + number_K * length
    lengths_K = np.minimum(np.repeat(lengths_D, counts_D) - number_K * length, length)
    return starts_K, lengths_K
