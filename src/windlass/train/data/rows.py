"""Rows as pieces of a corpus for each layout, and best-fit packing of documents.

Legend: R rows, K pieces, D documents.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from windlass.train.data.corpus import Corpus

__all__ = ["ChunkRows", "PieceRows", "RowTable", "cut_rows", "pack_documents"]

Layout = Literal["chunk", "pack", "pad", "bucket"]
LongDocuments = Literal["split", "truncate", "drop"]


class RowTable(Protocol):
    """Table of the rows from one source."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def is_joined(self) -> bool:
        """Return whether the first token of a document serves as the label of the token before it."""

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """Return (start in the corpus, number of tokens) for each piece of a row, from the left; the rest is padding."""

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Return the number of tokens in each row, without padding."""


class ChunkRows:
    """Rows cut from all tokens in sequence, every `length` tokens; an incomplete last row is dropped."""

    is_joined = True

    def __init__(self, corpus: Corpus, length: int) -> None:
        self._length = length
        self.num_rows = corpus.num_tokens // length

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """Return a single piece, which is a full row."""
        return [(row * self._length, self._length)]

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Return `length` for every row."""
        return np.full(len(row_N), self._length)


class PieceRows:
    """Rows made of whole documents, or of pieces of long ones.

    Args:
        starts_K: where each piece begins in the corpus.
        lengths_K: number of tokens of each piece.
        offsets_R: row r has the pieces offsets_R[r] to offsets_R[r + 1].
    """

    is_joined = False

    def __init__(self, starts_K: np.ndarray, lengths_K: np.ndarray, offsets_R: np.ndarray) -> None:
        self._starts_K, self._lengths_K, self._offsets_R = starts_K, lengths_K, offsets_R
        self._ends_K = np.cumsum(np.concatenate(([0], lengths_K)))
        self.num_rows = len(offsets_R) - 1

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """Return the pieces that make up a row."""
        first, last = self._offsets_R[row], self._offsets_R[row + 1]
        return list(zip(self._starts_K[first:last].tolist(), self._lengths_K[first:last].tolist(), strict=True))

    def lengths(self, row_N: np.ndarray) -> np.ndarray:
        """Return the sum over the pieces in each row."""
        tokens_N: np.ndarray = self._ends_K[self._offsets_R[row_N + 1]] - self._ends_K[self._offsets_R[row_N]]
        return tokens_N


def cut_rows(corpus: Corpus, length: int, *, layout: Layout, long_documents: LongDocuments = "split") -> RowTable:
    """Cut a corpus into rows.

    Args:
        long_documents: handling of documents longer than a row, in every layout but chunk.
    """
    if layout == "chunk":
        return ChunkRows(corpus, length)
    starts_K, lengths_K = _document_pieces(corpus.ends, length, long_documents)
    if layout == "pack":
        order_K, offsets_R = pack_documents(lengths_K, length)
        return PieceRows(starts_K[order_K], lengths_K[order_K], offsets_R)
    return PieceRows(starts_K, lengths_K, np.arange(len(starts_K) + 1))


def _document_pieces(ends_D: np.ndarray, length: int, long_documents: LongDocuments) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and lengths of documents, cut to at most `length`; empty documents are dropped."""
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


_WINDOW = 1 << 20
"""Documents packed at once: more reduce padding, but put documents into a row that are farther apart."""


def pack_documents(lengths_K: np.ndarray, length: int, *, window: int = _WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """Assign documents to rows. Deterministic; takes about 0.4 us per document.

    Args:
        lengths_K: tokens per document, 1 to `length`.
        length: tokens of a row.
        window: number of neighbouring documents to pack at once.

    Returns:
        order_K: documents in the order of rows.
        offsets_R: row r holds order_K[offsets_R[r] : offsets_R[r + 1]].

    Source: Ding et al. 2024, "Fewer truncations improve language modeling", section 3.
    """
    orders: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    offsets: list[np.ndarray] = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(lengths_K), window):
        order_N, sizes = _pack_window(lengths_K[start : start + window], length)
        orders.append(order_N + start)
        offsets.append(offsets[-1][-1] + np.cumsum(sizes))
    return np.concatenate(orders), np.concatenate(offsets)


def _pack_window(lengths_N: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents in the order of their rows, and the number of documents per row.

    Vectorized over documents of equal length.
    """
    by_length_N = np.argsort(-lengths_N, kind="stable")
    sizes, counts = np.unique(-lengths_N[by_length_N], return_counts=True)
    rows_N: np.ndarray = np.empty(len(lengths_N), dtype=np.int64)
    free: dict[int, np.ndarray] = {}  # tokens left -> rows with that number left
    room = 0  # bit t is set where some row has t tokens left
    num_rows = place = 0
    for size, count in zip((-sizes).tolist(), counts.tolist(), strict=True):
        end = place + count
        while place < end:
            fitting = room >> size
            if fitting:
                left = size + (fitting & -fitting).bit_length() - 1
                rows = free.pop(left)
                room ^= 1 << left
                used, spare = rows[: end - place], rows[end - place :]
                if len(spare):
                    free[left], room = spare, room | 1 << left
            else:
                fresh = min(end - place, -(-(end - place) // (length // size)))
                left, used = length, np.arange(num_rows, num_rows + fresh)
                num_rows += fresh
            rows_N[by_length_N[place : place + len(used)]] = used
            place += len(used)
            left -= size
            if left:
                free[left] = np.concatenate((free[left], used)) if left in free else used
                room |= 1 << left
    order_N = np.argsort(rows_N, kind="stable")
    return order_N, np.bincount(rows_N, minlength=num_rows)
