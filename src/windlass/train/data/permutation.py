"""A shuffle that is computed instead of stored: entry i of a permutation, from its key alone.

Legend: N entries.
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["Permutation"]

_NUM_ROUNDS = 8
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class Permutation:
    """A bijection of 0..size-1 onto itself that depends on a key; O(1) memory, about 0.2 us an entry in large batches.

    A Feistel network over pairs (left, right) of which there are a few more than `size`; an entry that falls outside is
    walked on until it falls inside, once in sqrt(size) times.

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
        """Where entries of 0..size-1 go, int64."""
        found_N: np.ndarray = self._round_trip(np.asarray(index_N, dtype=np.uint64))
        outside_N = found_N >= self.size
        while outside_N.any():
            found_N[outside_N] = self._round_trip(found_N[outside_N])
            outside_N = found_N >= self.size
        return found_N.view(np.int64)

    def _round_trip(self, index_N: np.ndarray) -> np.ndarray:
        left_N, right_N = index_N // self._right, index_N % self._right
        for number in range(0, _NUM_ROUNDS, 2):
            left_N = (left_N + _mix(right_N, self._keys[number : number + 1]) % self._left) % self._left
            right_N = (right_N + _mix(left_N, self._keys[number + 1 : number + 2]) % self._right) % self._right
        found_N: np.ndarray = left_N * self._right + right_N
        return found_N


def _mix(value_N: np.ndarray, key_1: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64. Source: Steele, Lea and Flood 2014, figure 17."""
    mixed_N: np.ndarray = value_N + key_1
    mixed_N = (mixed_N ^ (mixed_N >> _SHIFTS[0])) * _MIX[0]
    mixed_N = (mixed_N ^ (mixed_N >> _SHIFTS[1])) * _MIX[1]
    mixed_N ^= mixed_N >> _SHIFTS[2]
    return mixed_N
