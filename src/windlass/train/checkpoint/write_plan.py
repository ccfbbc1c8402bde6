"""Which process writes which piece: each piece once, and each process about as many bytes; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.train.checkpoint.layout import Box, Piece, TensorEntry
from windlass.train.errors import CheckpointError

__all__ = ["Holding", "assemble", "share_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A box of a tensor that a process has.

    Attributes:
        num_bytes: of the box.
    """

    section: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    num_bytes: int

    def to_data(self) -> list[Any]:
        """The JSON form."""
        return [self.section, self.name, self.dtype, self.shape, self.box.offsets, self.box.shape, self.num_bytes]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Holding:
        """Read `to_data` back."""
        section, name, dtype, shape, offsets, held, num_bytes = data
        box = Box(tuple(offsets), tuple(held))
        return cls(section=section, name=name, dtype=dtype, shape=tuple(shape), box=box, num_bytes=num_bytes)


def share_out(tables: Sequence[Sequence[Holding]]) -> list[list[int]]:
    """For each process, the places in its table of what it shall write.

    A box that several processes hold is written by the one with the least to do; large boxes are given out first.

    Raises:
        CheckpointError: processes differ on a tensor's shape or type, or what they hold does not fill it.
    """
    holders: dict[tuple[str, str, Box], list[tuple[int, int]]] = {}
    for rank, table in enumerate(tables):
        for place, held in enumerate(table):
            if held.box.num_elements:
                holders.setdefault((held.section, held.name, held.box), []).append((rank, place))
    _check_whole(tables, holders)
    load, plan = [0] * len(tables), [[] for _ in tables]  # type: list[int], list[list[int]]
    first = {key: tables[found[0][0]][found[0][1]] for key, found in holders.items()}
    for key in sorted(holders, key=lambda key: (-first[key].num_bytes, key[0], key[1], key[2].offsets)):
        rank, place = min(holders[key], key=lambda holder: (load[holder[0]], holder[0]))
        load[rank] += first[key].num_bytes
        plan[rank].append(place)
    return [sorted(places) for places in plan]


def _check_whole(
    tables: Sequence[Sequence[Holding]], holders: Mapping[tuple[str, str, Box], Sequence[tuple[int, int]]]
) -> None:
    kinds: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
    for rank, table in enumerate(tables):
        for held in table:
            kind = (held.dtype, held.shape)
            if kinds.setdefault((held.section, held.name), kind) != kind:
                other = kinds[held.section, held.name]
                raise CheckpointError(
                    f"`{held.section}.{held.name}` is {_kind(kind)} on rank {rank} and {_kind(other)} on another",
                    code="checkpoint-state",
                )
    filled: dict[tuple[str, str], int] = dict.fromkeys(kinds, 0)
    for section, name, box in holders:
        filled[section, name] += box.num_elements
    for (section, name), (_, shape) in kinds.items():
        if filled[section, name] != math.prod(shape):
            raise CheckpointError(
                f"the processes hold {filled[section, name]} elements of `{section}.{name}`, which has "
                f"{math.prod(shape)} in {list(shape)}",
                hint="all processes that share the model must save together",
                code="checkpoint-state",
            )


def _kind(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]} {list(kind[1])}"


def assemble(
    tables: Sequence[Sequence[Holding]], written: Sequence[Sequence[tuple[int, str, int]]]
) -> dict[str, dict[str, TensorEntry]]:
    """The layout's tensors from what each process holds, and what each wrote: (place in its table, file, start)."""
    pieces: dict[tuple[str, str], list[Piece]] = {}
    kinds: dict[tuple[str, str], Holding] = {}
    for table, places in zip(tables, written, strict=True):
        for held in table:
            kinds.setdefault((held.section, held.name), held)
        for place, file, start in places:
            held = table[place]
            pieces.setdefault((held.section, held.name), []).append(Piece(box=held.box, file=file, start=start))
    tensors: dict[str, dict[str, TensorEntry]] = {}
    for key, held in kinds.items():
        found = sorted(pieces.get(key, []), key=lambda piece: piece.box.offsets)
        entry = TensorEntry(dtype=held.dtype, shape=held.shape, pieces=tuple(found))
        tensors.setdefault(held.section, {})[held.name] = entry
    return tensors
