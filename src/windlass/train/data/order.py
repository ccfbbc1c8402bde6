"""Order of rows, which depends only on seed, epoch and index.

Legend: N requested positions, R rows of an epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windlass.train.data.rows import RowTable

__all__ = ["BucketOrder", "Permutation", "RowOrder"]


class RowOrder:
    """Rows in an endless sequence of epochs.

    An epoch has a fixed number of rows of each source. If that is not exactly one pass over the source, the next epoch
    continues where this one stopped, so that no row is used a third time before all have been used twice.

    Args:
        sizes: rows that each source has.
        counts: rows that each source contributes to an epoch.
        is_shuffled: if False, rows come source by source and in order.
    """

    def __init__(self, sizes: Sequence[int], counts: Sequence[int], *, seed: int, is_shuffled: bool = True) -> None:
        self.sizes, self.counts = tuple(sizes), tuple(counts)
        self.seed, self.is_shuffled = seed, is_shuffled
        self.rows_per_epoch = sum(counts)
        self._ends = np.cumsum(np.asarray(counts, dtype=np.int64))
        self._permutation = lru_cache(maxsize=64)(Permutation)

    def with_seed(self, seed: int) -> RowOrder:
        """Return an order of the same rows for another seed."""
        return RowOrder(self.sizes, self.counts, seed=seed, is_shuffled=self.is_shuffled)

    def rows(self, epoch: int, index_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source indices and row indices, int64, at positions in one epoch."""
        place_N = np.asarray(index_N, dtype=np.int64)
        if self.is_shuffled:
            place_N = self._permutation(self.rows_per_epoch, "epoch", self.seed, epoch)(place_N)
        source_N: np.ndarray = np.searchsorted(self._ends, place_N, side="right").astype(np.int64)
        row_N = place_N - (self._ends - np.asarray(self.counts))[source_N]
        for source in range(len(self.sizes)):
            if self.counts[source] != self.sizes[source]:
                is_here_N = source_N == source
                row_N[is_here_N] = self._go_on(source, epoch, row_N[is_here_N])
        return source_N, row_N

    def _go_on(self, source: int, epoch: int, place_N: np.ndarray) -> np.ndarray:
        """Return the rows at places in one source, if an epoch is not exactly one pass over it."""
        size = self.sizes[source]
        passes_N: np.ndarray
        row_N: np.ndarray
        passes_N, row_N = np.divmod(place_N + epoch * self.counts[source], size)
        if self.is_shuffled:
            for number in np.unique(passes_N):
                is_here_N = passes_N == number
                permutation = self._permutation(size, "source", self.seed, source, int(number))
                row_N[is_here_N] = permutation(row_N[is_here_N])
        return row_N


class BucketOrder(RowOrder):
    """Order that groups rows whose lengths round up to the same power of two, and shuffles the groups.

    Groups have the initial batch size, and are aligned so that batches of that size always begin with a group. The
    order of all rows of an epoch is held in memory, 8 bytes per row.

    Args:
        tables: the sources' rows, with their lengths.
        group: rows per group.
    """

    def __init__(
        self, sizes: Sequence[int], counts: Sequence[int], *, seed: int, tables: Sequence[RowTable], group: int
    ) -> None:
        super().__init__(sizes, counts, seed=seed)
        self._tables, self._group = tables, group
        self._by_length = lru_cache(maxsize=2)(self._sort)

    def with_seed(self, seed: int) -> BucketOrder:
        """Return an order of the same rows for another seed."""
        return BucketOrder(self.sizes, self.counts, seed=seed, tables=self._tables, group=self._group)

    def rows(self, epoch: int, index_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source indices and row indices, int64, at positions in one epoch."""
        place_N = np.array(index_N, dtype=np.int64)
        first = -epoch * self.rows_per_epoch % self._group  # the rest of a batch that began in the previous epoch
        num_groups = max(0, self.rows_per_epoch - first) // self._group
        group_N, within_N = np.divmod(place_N - first, self._group)
        is_moved_N = (group_N >= 0) & (group_N < num_groups)
        permutation = self._permutation(num_groups, "groups", self.seed, epoch)
        moved_N = permutation(group_N[is_moved_N]) * self._group + within_N[is_moved_N]
        place_N[is_moved_N] = first + moved_N
        return super().rows(epoch, self._by_length(epoch)[place_N])

    def _sort(self, epoch: int) -> np.ndarray:
        """Return the positions in the shuffled epoch, short rows first."""
        source_R, row_R = super().rows(epoch, np.arange(self.rows_per_epoch))
        length_R: np.ndarray = np.empty(self.rows_per_epoch, dtype=np.int64)
        for number, table in enumerate(self._tables):
            is_here_R = source_R == number
            length_R[is_here_R] = table.lengths(row_R[is_here_R])
        order_R: np.ndarray = np.argsort(np.frexp(length_R - 1.0)[1], kind="stable")
        return order_R


_NUM_ROUNDS = 8
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

UInt64s: TypeAlias = npt.NDArray[np.uint64]


class Permutation:
    """Permutation of 0..size-1 that depends on a key; O(1) memory, about 0.2 us per entry in large batches.

    A Feistel network over slightly more than `size` pairs (left, right); an entry that falls outside is permuted again
    until it falls inside, about once in sqrt(size) entries.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", sections 3 (cycle walking) and 4.
    """

    def __init__(self, size: int, *key: int | str) -> None:
        digest = hashlib.blake2b(repr((size, *key)).encode(), digest_size=8 * _NUM_ROUNDS).digest()
        self.size = size
        self._keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        rows = 1
        while rows * rows < size:
            rows = max(rows + 1, int(size**0.5))
        self._left = np.uint64(rows)
        self._right = np.uint64(-(-size // rows) if size else 1)

    def __call__(self, index_N: np.ndarray) -> np.ndarray:
        """Return the new positions of entries from 0..size-1, int64."""
        found_N = self._round_trip(np.asarray(index_N, dtype=np.uint64))
        outside_N = found_N >= self.size
        while outside_N.any():
            found_N[outside_N] = self._round_trip(found_N[outside_N])
            outside_N = found_N >= self.size
        return found_N.view(np.int64)

    def _round_trip(self, index_N: UInt64s) -> UInt64s:
        left_N, right_N = index_N // self._right, index_N % self._right
        for number in range(0, _NUM_ROUNDS, 2):
            left_N = (left_N + _mix(right_N, self._keys[number : number + 1]) % self._left) % self._left
            right_N = (right_N + _mix(left_N, self._keys[number + 1 : number + 2]) % self._right) % self._right
        return left_N * self._right + right_N


def _mix(value_N: UInt64s, key_1: UInt64s) -> UInt64s:
    """Apply the finalizer of splitmix64. Source: Steele, Lea and Flood 2014, figure 17."""
    mixed_N = value_N + key_1
    mixed_N = (mixed_N ^ (mixed_N >> _SHIFTS[0])) * _MIX[0]
    mixed_N = (mixed_N ^ (mixed_N >> _SHIFTS[1])) * _MIX[1]
    mixed_N ^= mixed_N >> _SHIFTS[2]
    return mixed_N
