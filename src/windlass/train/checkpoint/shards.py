"""Shard of one process: a safetensors file, checksummed while it is written, and read in ranges.

A shard is an ordinary safetensors file. Its header also has the offsets of each piece in its tensor, as
torch's HuggingFaceStorageReader expects. Source: safetensors, "Format"; torch.distributed.checkpoint.hf_storage.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from windlass.record.manifest import ManifestEntry
from windlass.train.checkpoint.files import Files
from windlass.train.checkpoint.layout import BLOCK_BYTES, Box, FileSums
from windlass.train.checkpoint.tensors import bytes_of, dtype_name

__all__ = ["Checksums", "Shard", "StagedTensor", "write_bytes", "write_shard"]

_ALIGN = 64
"""Alignment of the data; larger elements come first, so that every tensor can be memory-mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTensor:
    """Piece to write, contiguous and in host memory."""

    name: str
    box: Box
    tensor: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Written file, with its entry in the manifest, its checksums, and the start of each part."""

    entry: ManifestEntry
    sums: FileSums
    starts: tuple[int, ...]


class Checksums:
    """sha256 of a stream, and CRC-32 of each block in it."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._blocks: list[int] = []
        self._crc32 = 0

    def add(self, content: memoryview) -> None:
        """Add the next bytes."""
        self._sha256.update(content)
        while content:
            room = BLOCK_BYTES - self.size % BLOCK_BYTES
            now, content = content[:room], content[room:]
            self._crc32 = zlib.crc32(now, self._crc32)
            self.size += len(now)
            if self.size % BLOCK_BYTES == 0:
                self._blocks.append(self._crc32)
                self._crc32 = 0

    def entry(self, name: str) -> ManifestEntry:
        """Return the manifest entry for the file."""
        return ManifestEntry(name, self.size, self._sha256.hexdigest())

    def blocks(self) -> FileSums:
        """Return the checksums of the blocks."""
        last = (self._crc32,) if self.size % BLOCK_BYTES else ()
        return FileSums(crc32=(*self._blocks, *last))


def write_shard(files: Files, name: str, parts: Sequence[StagedTensor]) -> Shard:
    """Write pieces to a file, hashing every byte. Blocks; the file is durable on return.

    Raises:
        OSError: the disk is full, or the store does not respond.
    """
    header, starts = _header(parts)
    sums = Checksums()
    with files.create(name) as file:
        for content in (memoryview(header), *(bytes_of(part.tensor) for part in parts)):
            for place in range(0, len(content), 4 * BLOCK_BYTES):
                piece = content[place : place + 4 * BLOCK_BYTES]
                file.write(piece)
                sums.add(piece)
    return Shard(entry=sums.entry(name), sums=sums.blocks(), starts=tuple(starts))


def write_bytes(files: Files, name: str, content: bytes) -> ManifestEntry:
    """Write a small file. Blocks; the file is durable on return."""
    with files.create(name) as file:
        file.write(content)
    return ManifestEntry(name, len(content), hashlib.sha256(content).hexdigest())


def _header(parts: Sequence[StagedTensor]) -> tuple[bytes, list[int]]:
    """Return the file's header and the start of each part, since the format allows no gaps."""
    ends = list(itertools.accumulate(part.tensor.numel() * part.tensor.element_size() for part in parts))
    begins = [0, *ends[:-1]]
    keys = _keys(parts)
    sharding = {key: {"saved_offsets": list(part.box.offsets)} for key, part in zip(keys, parts, strict=True)}
    data: dict[str, Any] = {"__metadata__": {"format": "pt", "DCP_SHARDING_INFO": json.dumps(sharding)}}
    for key, part, begin, end in zip(keys, parts, begins, ends, strict=True):
        dtype = dtype_name(part.tensor.dtype)
        data[key] = {"dtype": dtype, "shape": list(part.box.shape), "data_offsets": [begin, end]}
    text = json.dumps(data, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    head = len(text).to_bytes(8, "little") + text
    return head, [len(head) + begin for begin in begins]


def _keys(parts: Sequence[StagedTensor]) -> list[str]:
    """Return the names to use in the file; the second and later pieces of a tensor include their offsets."""
    keys: dict[str, None] = {}
    for part in parts:
        key = part.name if part.name not in keys else f"{part.name}@{','.join(map(str, part.box.offsets))}"
        keys[key] = None
    return list(keys)
