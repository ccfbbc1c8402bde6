"""Weights in safetensors files: read one at a time, written one at a time.

The format is small enough to be written as a stream: eight bytes of length, a JSON header with each tensor's type, shape
and place, then the bytes. So a model of any size goes through the memory of its largest tensor.
Source: the safetensors format, https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.core.json_text import read_json
from windlass.train.checkpoint.tensors import bytes_of, dtype_name
from windlass.train.errors import CheckpointError

__all__ = ["FileWeights", "TensorToWrite", "write_weights"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorToWrite:
    """A tensor to be written: what is known of it before, and how to get it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class FileWeights:
    """The safetensors files of a folder; files are mapped, not read, until a tensor is asked for."""

    def __init__(self, folder: Path) -> None:
        """Look at the headers. Raises CheckpointError for a folder without weights or a file that is broken."""
        self.folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        try:
            for path in _weight_files(folder):
                self._open(path)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            file = self._stack.enter_context(safe_open(str(path), framework="pt"))
            names = list(file.keys())
            for name in names:
                self._shapes[name] = tuple(file.get_slice(name).get_shape())
                self._files[name] = file
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} is named by {INDEX} and is not there", hint="copy the whole folder again", code="hf-files"
            ) from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is no whole safetensors file: {error}", hint="copy it again", code="hf-files"
            ) from error

    def close(self) -> None:
        """Let go of the files; idempotent."""
        self._stack.close()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return self._shapes

    def tensor(self, name: str) -> Tensor:
        """One tensor, in the type it is kept in."""
        read: Tensor = self._files[name].get_tensor(name)
        return read


def _weight_files(folder: Path) -> Sequence[Path]:
    index, single = folder / INDEX, folder / SINGLE
    if index.is_file():
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
            if any(Path(name).name != name for name in names):
                raise ValueError("it names files of other folders")
            return [folder / name for name in names]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{index} is no index of weights: {error!r}", hint="copy it again", code="hf-files"
            ) from error
    if single.is_file():
        return [single]
    for name in _PICKLES:
        if (folder / name).is_file():
            raise CheckpointError(
                f"{folder} has its weights in {name}, a pickle, which can run code",
                hint="load it with transformers once and save_pretrained(..., safe_serialization=True)",
                code="hf-files",
            )
    raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}", hint="give the model's folder", code="hf-files")


def write_weights(folder: Path, entries: Sequence[TensorToWrite], *, max_shard_bytes: int) -> tuple[Path, ...]:
    """Write tensors as `model.safetensors`, or as shards with an index where they are larger than one.

    Each tensor is read, written and let go. Files are synced; the folder is the caller's to publish.

    Raises:
        CheckpointError: a tensor has another shape than was said, or there is no room.
    """
    shards = list(_shards(entries, max_shard_bytes))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    paths = tuple(folder / name for name in names)
    for path, shard in zip(paths, shards, strict=True):
        try:
            _write_shard(path, shard)
        except OSError as error:
            raise CheckpointError(
                f"cannot write {path}: {error.strerror or error}",
                hint="free some space, or give another folder",
                code="file-unwritable",
            ) from error
    if len(shards) > 1:
        places = {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard}
        total = sum(entry.num_bytes for entry in entries)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return paths


def _shards(entries: Sequence[TensorToWrite], max_bytes: int) -> Iterator[list[TensorToWrite]]:
    """Runs of tensors of at most so many bytes; a tensor larger than that has a file of its own."""
    shard: list[TensorToWrite] = []
    size = 0
    for entry in entries:
        if shard and size + entry.num_bytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.num_bytes
    yield shard


def _write_shard(path: Path, entries: Sequence[TensorToWrite]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": dtype_name(entry.dtype),
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.num_bytes],
        }
        offset += entry.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight, so that they can be mapped
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            tensor = _checked(entry)
            file.write(bytes_of(tensor))
            del tensor  # before the next one is read
        file.flush()
        os.fsync(file.fileno())


def _checked(entry: TensorToWrite) -> Tensor:
    tensor = entry.read().detach()
    if tuple(tensor.shape) != entry.shape:
        raise CheckpointError(
            f"{entry.name} has shape {tuple(tensor.shape)}, not {entry.shape}",
            hint="the configuration is of another model",
            code="weights-differ",
        )
    return tensor.to(device="cpu", dtype=entry.dtype).contiguous()
