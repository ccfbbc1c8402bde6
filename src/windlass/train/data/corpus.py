"""Tokens of a source as one sequence that spans several files.

Legend: T tokens, D documents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

__all__ = ["Corpus", "CorpusPart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPart:
    """File of tokens, mapped into memory.

    Attributes:
        name: name in errors.
        tokens_T: ids, any unsigned type.
        find_ends: returns the ends of its documents (int64, rising, the last one T); called on first use.
        mask_T: True where a token counts as a label; if None, all tokens do.
    """

    name: str
    tokens_T: np.ndarray
    find_ends: Callable[[], np.ndarray]
    mask_T: np.ndarray | None = None


class Corpus:
    """Tokens of a source: its parts in sequence.

    Attributes:
        name: name in errors and reports.
        digest: digest of content, or of sizes and times; equal digests mean equal tokens.
        max_id: largest token id; None if unknown.
    """

    def __init__(self, name: str, parts: Sequence[CorpusPart], *, digest: str, max_id: int | None = None) -> None:
        self.name, self.digest, self.max_id = name, digest, max_id
        self.parts = tuple(parts)
        self._starts = list(accumulate((len(part.tokens_T) for part in self.parts), initial=0))
        self.num_tokens = self._starts[-1]
        self.has_mask = any(part.mask_T is not None for part in self.parts)

    def read(self, start: int, out_T: np.ndarray) -> None:
        """Fill `out_T` (int64) with the tokens from `start` on, at the cost of one copy."""
        for part, begin, place, count in self._pieces(start, len(out_T)):
            out_T[place : place + count] = part.tokens_T[begin : begin + count]

    def read_mask(self, start: int, out_T: np.ndarray) -> None:
        """Set `out_T` (bool), for the tokens from `start` on, to whether each counts as a label."""
        for part, begin, place, count in self._pieces(start, len(out_T)):
            out_T[place : place + count] = True if part.mask_T is None else part.mask_T[begin : begin + count]

    def where(self, position: int) -> str:
        """Return the file that contains a token, for error messages."""
        return self.parts[self._part_of(position)].name

    @cached_property
    def ends(self) -> np.ndarray:
        """Return the ends of all documents, int64, ascending; computed once, 8 bytes per document."""
        found: list[np.ndarray] = [
            part.find_ends() + start for part, start in zip(self.parts, self._starts, strict=False)
        ]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _part_of(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _pieces(self, start: int, count: int) -> list[tuple[CorpusPart, int, int, int]]:
        """Return (part, start in the part, position in the output, number of tokens) for each piece of a range."""
        found: list[tuple[CorpusPart, int, int, int]] = []
        number, place = self._part_of(start), 0
        while place < count:
            begin = start + place - self._starts[number]
            taken = min(count - place, len(self.parts[number].tokens_T) - begin)
            if taken > 0:
                found.append((self.parts[number], begin, place, taken))
                place += taken
            number += 1
        return found
