"""Import and export of whole models in Hugging Face folders."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory
from windlass.core.json_text import read_json
from windlass.train.checkpoint.tensors import bytes_of, dtype_name
from windlass.train.errors import CheckpointError
from windlass.train.hf.companions import Companions, is_companion
from windlass.train.hf.config import read_config, to_hf
from windlass.train.hf.mapped import MappedWeights, Weights, check_weights, fill
from windlass.train.hf.maps import Weight, hf_names
from windlass.train.model.config import ModelConfig

__all__ = [
    "DTYPES",
    "DType",
    "FileWeights",
    "TensorToWrite",
    "export_model",
    "import_hf",
    "load_hf",
    "staged_folder",
    "write_safetensors",
    "write_weights",
]

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHARD_BYTES = 5_000_000_000
"""Maximum size of a file, as in transformers."""


def import_hf(path: str | Path) -> MappedWeights:
    """Open a model, and check the names and shapes of its weights against its configuration.

        with import_hf("models/olmo2-1b") as weights:
            model = Decoder(weights.config)
            for name, tensor in weights: ...

    Raises:
        SpecError: our decoder does not support the architecture or settings in its config.json.
        CheckpointError: the safetensors files are incomplete, or do not match config.json.
    """
    folder = Path(str(path).removeprefix("hf:")).expanduser()
    config = read_config(folder)
    model_type = read_json(folder / "config.json")["model_type"]
    files = FileWeights(folder)
    try:
        return MappedWeights(config, hf_names(model_type), files, str(folder), files.close)
    except BaseException:
        files.close()
        raise


def load_hf(model: nn.Module, path: str | Path) -> ModelConfig:
    """Fill a decoder with the weights from a Hugging Face folder; return the folder's configuration.

    Parameters may be sharded; each process reads what it needs, without communication.

    Raises:
        CheckpointError: the folder contains a different model.
    """
    with import_hf(path) as weights:
        fill(dict(model.named_parameters()), weights, str(path))
        return weights.config


def export_model(
    config: ModelConfig,
    weights: Weights,
    folder: str | Path,
    *,
    dtype: DType = "float32",
    companions: Companions | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Write a model to a folder that transformers, vLLM and other programs can load. Atomic.

    Costs the memory of the largest weight.

    Args:
        weights: weights by windlass's names.
        companions: the model's tokenizer files, generation_config.json and special ids.
        overwrite: whether to replace a Hugging Face model in that folder; anything else is never replaced.

    Raises:
        SpecError: no transformers architecture has one of the model's settings.
        PreconditionError: the folder exists, or cannot be written to.
        CheckpointError: weights are missing or have the wrong shape, or the disk is full.
    """
    companions = companions or Companions()
    data = {**to_hf(config, dtype=dtype), **companions.ids}
    entries = list(_entries(config, weights, data["model_type"], DTYPES[dtype]))
    with staged_folder(folder, overwrite=overwrite) as stage:
        write_weights(stage, entries, max_shard_bytes=max_shard_bytes)
        (stage / "config.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        for name, content in companions.files.items():
            (stage / name).write_bytes(content)
    return Path(folder).expanduser().absolute()


@contextmanager
def staged_folder(folder: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder beside the target, which replaces it at the end of the block; nothing stays after an error.

    Raises:
        PreconditionError: the target exists, or cannot be written to.
    """
    target = Path(folder).expanduser().absolute()
    _refuse_existing(target, overwrite=overwrite)
    stage = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        raise PreconditionError(
            f"cannot write {target}: {error.strerror or error}", hint="use another folder", code="not-writable"
        ) from error
    try:
        yield stage
        fsync_directory(stage)
        _publish(stage, target, overwrite=overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _entries(config: ModelConfig, weights: Weights, model_type: str, dtype: torch.dtype) -> Iterator[TensorToWrite]:
    wanted = list(hf_names(model_type).weights(config))
    plain = [Weight(ours=weight.ours, theirs=(weight.ours,), shape=weight.shape) for weight in wanted]
    check_weights(weights.shapes(), plain, "the checkpoint")
    reader = _Reader(weights)
    for weight in wanted:
        for index, theirs in enumerate(weight.theirs):
            read = partial(reader.read, weight.ours, index if weight.is_stacked else None)
            yield TensorToWrite(name=theirs, shape=weight.their_shape, dtype=dtype, read=read)


class _Reader:
    """Reader that keeps the last weight it read, so that stacked experts are read only once."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._name = weights, ""
        self._tensor = torch.empty(0)

    def read(self, name: str, index: int | None) -> Tensor:
        """Read a weight or, if several tensors are stacked in it, the one at `index`."""
        if name != self._name:
            self._tensor = torch.empty(0)  # freed before the next one is read
            self._name, self._tensor = name, self._weights.tensor(name)
        return self._tensor if index is None else self._tensor[index]


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Reject an existing target unless it is an exported model and `overwrite` is set."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise PreconditionError(
            f"{target} exists", hint="use another folder, or pass `--overwrite`", code="already-exists"
        )
    if not target.is_dir() or (foreign := sorted(path.name for path in target.iterdir() if not _is_exported(path))):
        what = f"holds {foreign[0]}" if target.is_dir() else "is a file"
        raise PreconditionError(
            f"{target} {what}; it is not an exported model and is not replaced",
            hint="use another folder, or remove it yourself",
            code="already-exists",
        )


def _is_exported(path: Path) -> bool:
    names = ("config.json", "adapter_config.json", "model.safetensors.index.json")
    return path.is_file() and (path.name in names or is_companion(path.name) or path.suffix == ".safetensors")


def _publish(stage: Path, target: Path, *, overwrite: bool) -> None:
    """Rename the staged folder to its final name, after moving a previous folder aside."""
    if not (overwrite and os.path.lexists(target)):
        _refuse_existing(target, overwrite=False)
        os.rename(stage, target)
    else:
        aside = stage.with_suffix(".old")
        os.rename(target, aside)
        os.rename(stage, target)
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside)
        else:
            aside.unlink()
    fsync_directory(target.parent)


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorToWrite:
    """Properties of a tensor to write, and a function that reads it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """Number of bytes in the file."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class FileWeights:
    """Safetensors files in a folder, mapped into memory; tensors are read on demand."""

    def __init__(self, folder: Path) -> None:
        """Read the headers. Raises CheckpointError for a folder without weights or an invalid file."""
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
                f"{path} is listed in {INDEX} but missing",
                hint="copy the whole folder again",
                code="foreign-checkpoint",
            ) from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is not a valid safetensors file: {error}", hint="copy it again", code="foreign-checkpoint"
            ) from error

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._stack.close()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        return self._shapes

    def tensor(self, name: str) -> Tensor:
        """Read a tensor in its stored type."""
        read: Tensor = self._files[name].get_tensor(name)
        return read


def _weight_files(folder: Path) -> Sequence[Path]:
    index, single = folder / INDEX, folder / SINGLE
    if index.is_file():
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
            if any(Path(name).name != name for name in names):
                raise ValueError("it refers to files in other folders")
            return [folder / name for name in names]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{index} is not a valid index of weights: {error!r}", hint="copy it again", code="foreign-checkpoint"
            ) from error
    if single.is_file():
        return [single]
    for name in _PICKLES:
        if (folder / name).is_file():
            raise CheckpointError(
                f"the weights in {folder} are in {name}, a pickle, which can run code",
                hint="load it with transformers once and save_pretrained(..., safe_serialization=True)",
                code="foreign-checkpoint",
            )
    raise CheckpointError(
        f"{folder} has no {SINGLE} and no {INDEX}", hint="pass the model's folder", code="foreign-checkpoint"
    )


def write_weights(folder: Path, entries: Sequence[TensorToWrite], *, max_shard_bytes: int) -> tuple[Path, ...]:
    """Write tensors to `model.safetensors` or, if that would be too large, to shards with an index.

    Each tensor is read, written and freed. The files are synced; the caller publishes the folder.

    Raises:
        CheckpointError: a tensor has an unexpected shape, or the disk is full.
    """
    shards = list(_shards(entries, max_shard_bytes))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    paths = tuple(folder / name for name in names)
    for path, shard in zip(paths, shards, strict=True):
        write_safetensors(path, shard)
    if len(shards) > 1:
        places = {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard}
        total = sum(entry.num_bytes for entry in entries)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return paths


def _shards(entries: Sequence[TensorToWrite], max_bytes: int) -> Iterator[list[TensorToWrite]]:
    """Group tensors into files of at most `max_bytes`; a larger tensor gets its own file."""
    shard: list[TensorToWrite] = []
    size = 0
    for entry in entries:
        if shard and size + entry.num_bytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.num_bytes
    yield shard


def write_safetensors(path: Path, entries: Sequence[TensorToWrite]) -> None:
    """Write one file, reading and freeing each tensor in turn; synced.

    Raises:
        CheckpointError: a tensor has an unexpected shape, or the disk is full.
    """
    try:
        _write_shard(path, entries)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}",
            hint="free some space, or use another folder",
            code="not-writable",
        ) from error


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
    text += b" " * (-len(text) % 8)  # align tensors to 8 bytes, so that they can be mapped
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            tensor = _checked(entry)
            file.write(bytes_of(tensor))
            del tensor  # before the next tensor is read
        file.flush()
        os.fsync(file.fileno())


def _checked(entry: TensorToWrite) -> Tensor:
    tensor = entry.read().detach()
    if tuple(tensor.shape) != entry.shape:
        raise CheckpointError(
            f"{entry.name} has shape {tuple(tensor.shape)}, not {entry.shape}",
            hint="the configuration belongs to a different model",
            code="checkpoint-mismatch",
        )
    return tensor.to(device="cpu", dtype=entry.dtype).contiguous()
