"""Layout of a checkpoint: the file and offset of every piece of every tensor; importable without torch.

`layout.json` lists every tensor with its type and shape and, for each piece, the box that it fills and its bytes in a
file. Any process can therefore read any box, whatever the number of processes that wrote the checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.core.json_text import decode_json

__all__ = ["BLOCK_BYTES", "Box", "FileSums", "Layout", "Piece", "TensorEntry", "overlap"]

SCHEMA = 1
BLOCK_BYTES = 1 << 20
"""Bytes covered by one checksum, so that part of a file can be read and verified."""


@dataclass(frozen=True, slots=True)
class Box:
    """Rectangular part of a tensor: its start and size in each dimension; both are empty for a scalar."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements, which is 1 for a scalar."""
        return math.prod(self.shape)

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box that covers a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))


def overlap(left: Box, right: Box) -> Box | None:
    """Return the intersection of two boxes, in coordinates of the tensor, or None if it is empty."""
    begins = tuple(max(a, b) for a, b in zip(left.offsets, right.offsets, strict=True))
    ends = tuple(
        min(a + n, b + m) for a, n, b, m in zip(left.offsets, left.shape, right.offsets, right.shape, strict=True)
    )
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        return None
    return Box(begins, tuple(end - begin for begin, end in zip(begins, ends, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Box of a tensor as stored in a file, row-major and little-endian, from byte `start` on."""

    box: Box
    file: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Entry for one tensor of a checkpoint.

    Attributes:
        dtype: type name of safetensors, such as `F32`.
        pieces: boxes that fill it, without overlap.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """CRC-32 of each block in a file; the last block may be shorter."""

    crc32: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All tensors and plain values in a checkpoint, by section (`model`, `optim`) and name.

    Attributes:
        world: number of processes that wrote it.
        values: other values, JSON-safe.
    """

    world: int
    tensors: Mapping[str, Mapping[str, TensorEntry]]
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, FileSums] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the content of `layout.json`."""
        names = sorted(self.files)
        index = {name: number for number, name in enumerate(names)}
        data = {
            "schema": SCHEMA,
            "world": self.world,
            "block": BLOCK_BYTES,
            "files": [{"name": name, "crc32": _to_hex(self.files[name].crc32)} for name in names],
            "tensors": {
                section: {name: _tensor_to_data(entry, index) for name, entry in sorted(entries.items())}
                for section, entries in sorted(self.tensors.items())
            },
            "values": {section: dict(sorted(values.items())) for section, values in sorted(self.values.items())},
        }
        return json.dumps(data, separators=(",", ":"), ensure_ascii=True).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> Layout:
        """Parse what `to_json` returns.

        Raises:
            ValueError: the layout is invalid, or of another schema.
        """
        try:
            data = decode_json(content)
            if data["schema"] != SCHEMA or data["block"] != BLOCK_BYTES:
                raise ValueError(f"unknown schema {data['schema']} with blocks of {data['block']}")
            names = [file["name"] for file in data["files"]]
            return cls(
                world=int(data["world"]),
                files={file["name"]: FileSums(crc32=_from_hex(file["crc32"])) for file in data["files"]},
                tensors={
                    section: {name: _tensor_from_data(entry, names) for name, entry in entries.items()}
                    for section, entries in data["tensors"].items()
                },
                values={section: dict(values.items()) for section, values in data["values"].items()},
            )
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"invalid layout: {error!r}") from error


def _tensor_to_data(entry: TensorEntry, index: Mapping[str, int]) -> dict[str, Any]:
    pieces = [
        [index[piece.file], piece.start, list(piece.box.offsets), list(piece.box.shape)] for piece in entry.pieces
    ]
    return {"dtype": entry.dtype, "shape": list(entry.shape), "pieces": pieces}


def _tensor_from_data(data: Mapping[str, Any], names: Sequence[str]) -> TensorEntry:
    pieces = tuple(
        Piece(box=Box(_ints(offsets), _ints(shape)), file=names[file], start=int(start))
        for file, start, offsets, shape in data["pieces"]
    )
    return TensorEntry(dtype=str(data["dtype"]), shape=_ints(data["shape"]), pieces=pieces)


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _to_hex(sums: Iterable[int]) -> str:
    return "".join(f"{value:08x}" for value in sums)


def _from_hex(text: str) -> tuple[int, ...]:
    return tuple(int(text[place : place + 8], 16) for place in range(0, len(text), 8))
