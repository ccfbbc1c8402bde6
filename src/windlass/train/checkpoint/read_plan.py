"""Which bytes of which files fill some boxes of some tensors, in as few reads as that takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.train.checkpoint.layout import BLOCK_BYTES, Box, Piece, TensorEntry, overlap
from windlass.train.checkpoint.tensors import DTYPES, item_bytes

__all__ = ["MAX_READ_BYTES", "Cut", "cuts_of", "runs_of"]

MAX_READ_BYTES = 32 * BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Whole rows of a piece, of which some columns go to a place.

    Attributes:
        start, end: bytes of the file.
        shape: of the rows.
        columns: (first, number) for each dimension after the rows.
        target: where they go; of the type and on the device of the state.
    """

    file: str
    start: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    target: Tensor

    def copy(self, content: bytearray, start: int) -> None:
        """Take the bytes out of a read that began at byte `start` of the file."""
        count = math.prod(self.shape)
        rows = torch.frombuffer(content, dtype=torch.uint8, count=self.end - self.start, offset=self.start - start)
        if rows.storage_offset() % self.dtype.itemsize or rows.data_ptr() % self.dtype.itemsize:
            rows = rows.clone()  # a view of a wider type must be aligned
        typed = rows.view(self.dtype)[:count].view(self.shape)
        for dim, (first, number) in enumerate(self.columns, 1):
            typed = typed.narrow(dim, first, number)
        self.target.copy_(typed)


def cuts_of(entry: TensorEntry, box: Box, target: Tensor) -> Iterator[Cut]:
    """What fills `target`, which holds a box of a tensor: whole rows of each piece, at most `MAX_READ_BYTES` at a time."""
    for piece in entry.pieces:
        shared = overlap(piece.box, box)
        if shared is not None:
            view = target
            for dim, (offset, size) in enumerate(zip(shared.offsets, shared.shape, strict=True)):
                view = view.narrow(dim, offset - box.offsets[dim], size)
            yield from _rows(entry, piece, shared, view)


def _rows(entry: TensorEntry, piece: Piece, shared: Box, target: Tensor) -> Iterator[Cut]:
    size, dtype = item_bytes(entry.dtype), DTYPES[entry.dtype]
    if not shared.shape:
        yield Cut(
            file=piece.file,
            start=piece.start,
            end=piece.start + size,
            dtype=dtype,
            shape=(),
            columns=(),
            target=target,
        )
        return
    inner = piece.box.shape[1:]
    row_bytes = math.prod(inner) * size
    step = max(1, MAX_READ_BYTES // row_bytes)
    columns = tuple(
        (offset - held, number)
        for offset, held, number in zip(shared.offsets[1:], piece.box.offsets[1:], shared.shape[1:], strict=True)
    )
    first = shared.offsets[0] - piece.box.offsets[0]
    for begin in range(0, shared.shape[0], step):
        end = min(begin + step, shared.shape[0])
        yield Cut(
            file=piece.file,
            start=piece.start + (first + begin) * row_bytes,
            end=piece.start + (first + end) * row_bytes,
            dtype=dtype,
            shape=(end - begin, *inner),
            columns=columns,
            target=target[begin:end],
        )


def runs_of(cuts: Iterable[Cut]) -> list[Sequence[Cut]]:
    """Cuts that are read together: neighbours in a file, up to `MAX_READ_BYTES`; small gaps between them are read too."""
    runs: list[list[Cut]] = []
    for cut in sorted(cuts, key=lambda cut: (cut.file, cut.start)):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last[0].file == cut.file
            and cut.start - last[-1].end <= BLOCK_BYTES
            and cut.end - last[0].start <= MAX_READ_BYTES
        ):
            last.append(cut)
        else:
            runs.append([cut])
    return list(runs)
