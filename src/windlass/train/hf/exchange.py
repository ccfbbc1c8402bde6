"""Whole models to and from folders of Hugging Face."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory
from windlass.core.json_text import read_json
from windlass.train.hf.companions import Companions, is_companion
from windlass.train.hf.config import read_config, to_hf
from windlass.train.hf.mapped import MappedWeights, Weights, check_weights, fill
from windlass.train.hf.maps import Weight, hf_names
from windlass.train.hf.weights import FileWeights, TensorToWrite, write_weights
from windlass.train.model.config import ModelConfig

__all__ = ["export_model", "import_hf", "load_hf"]

DType = Literal["float32", "bfloat16", "float16"]
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHARD_BYTES = 5_000_000_000
"""As transformers cuts its files."""


def import_hf(path: str | Path) -> MappedWeights:
    """A model's configuration and weights, checked against each other; nothing is read yet.

        with import_hf("models/olmo2-1b") as weights:
            model = Decoder(weights.config)
            for name, tensor in weights: ...

    Raises:
        SpecError: its config.json names an architecture or settings that our decoder does not have.
        CheckpointError: no whole safetensors files, or not the weights that config.json promises.
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
    """Fill a decoder with the weights of a folder of Hugging Face; returns the configuration found there.

    Parameters may be sharded; each process reads what it needs, and nothing is sent.

    Raises:
        CheckpointError: the folder holds another model.
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
    """Write a model as a folder that transformers, vLLM and others load. It appears whole or not at all.

    Costs the memory of the largest weight.

    Args:
        weights: by our names.
        companions: the tokenizer's files, generation_config.json and special ids that go with it.
        overwrite: whether a model of Hugging Face in that folder may be replaced; nothing else ever is.

    Raises:
        SpecError: no architecture of transformers has one of the model's settings.
        PreconditionError: the folder exists, or cannot be written to.
        CheckpointError: weights are missing or misshapen, or there is no room.
    """
    target = Path(folder).expanduser().absolute()
    companions = companions or Companions()
    data = {**to_hf(config, dtype=dtype), **companions.ids}
    _refuse_existing(target, overwrite=overwrite)
    entries = list(_entries(config, weights, data["model_type"], _DTYPES[dtype]))
    stage = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        raise PreconditionError(
            f"{target} cannot be written: {error.strerror or error}", hint="give another folder", code="file-unwritable"
        ) from error
    try:
        write_weights(stage, entries, max_shard_bytes=max_shard_bytes)
        (stage / "config.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        for name, content in companions.files.items():
            (stage / name).write_bytes(content)
        fsync_directory(stage)
        _publish(stage, target, overwrite=overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return target


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
    """Reads weights and holds the last one, so that a stack of experts is read once for all of them."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._name = weights, ""
        self._tensor = torch.empty(0)

    def read(self, name: str, index: int | None) -> Tensor:
        """A weight, or one of the tensors stacked in it."""
        if name != self._name:
            self._tensor = torch.empty(0)  # let go before the next is read
            self._name, self._tensor = name, self._weights.tensor(name)
        return self._tensor if index is None else self._tensor[index]


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Only a model of Hugging Face is ever replaced: not checkpoints, and not a folder with other work in it."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise PreconditionError(
            f"{target} exists", hint="give another folder, or ask for it with `--overwrite`", code="file-exists"
        )
    if not target.is_dir() or (foreign := sorted(path.name for path in target.iterdir() if not _is_exported(path))):
        what = f"holds {foreign[0]}" if target.is_dir() else "is a file"
        raise PreconditionError(
            f"{target} {what}, so it is no exported model that could be replaced",
            hint="give another folder, or remove it yourself",
            code="file-exists",
        )


def _is_exported(path: Path) -> bool:
    names = ("config.json", "model.safetensors.index.json")
    return path.is_file() and (path.name in names or is_companion(path.name) or path.suffix == ".safetensors")


def _publish(stage: Path, target: Path, *, overwrite: bool) -> None:
    """Give the staged folder its name; what had it before stands aside until then."""
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
