"""Pieces of a model's weights: consecutive bytes of its tensors, and how one differs from the piece before.

Most weights that a small update leaves equal to the last bit (in bfloat16, what is below 1/256 of the value) need no
bytes. What changed is stored as the distance from the element before it and the new value.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Content",
    "PiecePart",
    "WeightPiece",
    "apply_change",
    "change_between",
    "checksum",
    "gather",
    "pieces_of",
    "scatter",
]

Content: TypeAlias = "np.ndarray[Any, Any]"
"""Bytes of a piece as unsigned integers, one for each element."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_GAPS: dict[str, np.dtype[Any]] = {"gaps8": np.dtype(np.uint8), "gaps16": np.dtype(np.uint16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecePart:
    """Elements [first, first + count) of a tensor."""

    name: str
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPiece:
    """Parts of consecutive tensors with elements of one size."""

    item_bytes: int
    parts: tuple[PiecePart, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size in bytes."""
        return self.item_bytes * sum(part.count for part in self.parts)


def pieces_of(sizes: Sequence[tuple[str, int, int]], piece_bytes: int) -> list[WeightPiece]:
    """Divide tensors, given as (name, elements, bytes of an element), into pieces of at most `piece_bytes`."""
    pieces: list[WeightPiece] = []
    parts: list[PiecePart] = []
    room = before = 0
    for name, count, item_bytes in sizes:
        first = 0
        while first < count:
            if room < item_bytes or item_bytes != before:
                if parts:
                    pieces.append(WeightPiece(item_bytes=before, parts=tuple(parts)))
                parts, room, before = [], max(piece_bytes, item_bytes), item_bytes
            taken = min(count - first, room // item_bytes)
            parts.append(PiecePart(name=name, first=first, count=taken))
            first, room = first + taken, room - taken * item_bytes
    if parts:
        pieces.append(WeightPiece(item_bytes=before, parts=tuple(parts)))
    return pieces


def gather(piece: WeightPiece, tensors: Mapping[str, Tensor]) -> Content:
    """Return a copy of a piece's bytes."""
    content = np.empty(piece.num_bytes, dtype=np.uint8)
    start = 0
    for part in piece.parts:
        stop = start + part.count * piece.item_bytes
        elements = tensors[part.name].detach().reshape(-1)[part.first : part.first + part.count]
        torch.from_numpy(content[start:stop]).copy_(elements.contiguous().view(torch.uint8))
        start = stop
    return content.view(_UNSIGNED[piece.item_bytes])


def scatter(
    piece: WeightPiece, content: Content, tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]
) -> None:
    """Write a piece into tensors, which may have other types than the stored ones."""
    values = content.view(np.uint8)
    start = 0
    for part in piece.parts:
        stop = start + part.count * piece.item_bytes
        elements = torch.from_numpy(values[start:stop]).view(dtypes[part.name])
        tensors[part.name].view(-1)[part.first : part.first + part.count].copy_(elements)
        start = stop


def checksum(content: Content) -> int:
    """Return the CRC-32 of a piece's bytes."""
    return zlib.crc32(content.data.cast("B"))


def change_between(old: Content, new: Content) -> tuple[str, bytes]:
    """Return how to make `new` of `old`: the kind of change, and its bytes. Compares bits, so -0.0 differs from 0.0."""
    differs = old != new
    count = int(np.count_nonzero(differs))
    if count == 0:
        return "same", b""
    # Most changed elements are near the one before them unless few are: then wider gaps take fewer bytes.
    kind = "gaps8" if count * 256 > len(new) else "gaps16"
    if count * (new.itemsize + _GAPS[kind].itemsize) >= new.nbytes:
        return "whole", new.tobytes()
    reach = 256 ** _GAPS[kind].itemsize
    indices = np.flatnonzero(differs)
    steps = np.diff(indices, prepend=-1)
    # An element that is too far away is reached by way of elements that did not change.
    between = (steps - 1) // reach
    if between.any():
        counts = between.sum()
        order = np.arange(counts) - np.repeat(np.cumsum(between) - between, between) + 1
        indices = np.sort(np.concatenate([indices, np.repeat(indices - steps, between) + reach * order]))
        steps = np.diff(indices, prepend=-1)
    return kind, (steps - 1).astype(_GAPS[kind]).tobytes() + new[indices].tobytes()


def apply_change(kind: str, change: bytes, content: Content) -> Content:
    """Return the piece after a change; overwrites `content` if it can. Raises ValueError for invalid bytes."""
    if kind == "same":
        return content
    if kind == "whole":
        if len(change) != content.nbytes:
            raise ValueError("wrong size")
        return np.frombuffer(bytearray(change), dtype=content.dtype)
    gap_type = _GAPS[kind]
    count, rest = divmod(len(change), gap_type.itemsize + content.itemsize)
    gaps = np.frombuffer(change, dtype=gap_type, count=count)
    indices = np.cumsum(gaps, dtype=np.int64)
    indices += np.arange(count)
    if rest or (count and indices[-1] >= len(content)):
        raise ValueError("an index outside of the piece")
    content[indices] = np.frombuffer(change, dtype=content.dtype, offset=gaps.nbytes)
    return content
