"""Models from any source: windlass checkpoints, Hugging Face folders, OLMo-core checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from windlass.config.loading import from_data
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.json_text import decode_json
from windlass.record.manifest import FOLDER_MANIFEST
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.checkpoint.layout import Box
from windlass.train.checkpoint.listing import EXTRA_FOLDER, list_committed
from windlass.train.checkpoint.reading import CONFIG_FILE, TRAINER_FILE, CheckpointReader, damaged
from windlass.train.checkpoint.tensors import DTYPES
from windlass.train.data.config import TokenizerConfig
from windlass.train.errors import CheckpointError
from windlass.train.hf.companions import KEPT_BELOW, Companions, companions_in, kept
from windlass.train.hf.convert_weights import import_hf
from windlass.train.hf.mapped import ModelSource, fill
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.olmo_core.checkpoint import OlmoCoreCheckpoint, is_olmo_core, open_olmo_core

__all__ = ["StoredCheckpoint", "companions_of", "load_model", "open_model", "tokenizer_config_of"]

HF = "hf:"


class StoredCheckpoint:
    """Windlass checkpoint, read without a process group, with verified checksums.

    Attributes:
        config: settings of its model.
        record: its config.json: the recipe and the origin of each value.
        step: number of optimiser steps taken.
        tokens: number of tokens trained on.
    """

    def __init__(self, path: str) -> None:
        """Open a checkpoint. Raises CheckpointError if it is unfinished, damaged or without a model."""
        self._reader = CheckpointReader.open(open_files(path))
        self.source = self._reader.files.path
        self.record: Mapping[str, Any] = self._reader.read_object(CONFIG_FILE)
        trainer = self._reader.read_trainer()
        try:
            self.step, self.tokens = int(trainer["step"]), int(trainer["tokens"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(self._reader.files, TRAINER_FILE, f"{error!r:.200}") from error
        self.trainer: Mapping[str, Any] = trainer["state"]
        self._model_config: ModelConfig | None = None

    @property
    def config(self) -> ModelConfig:
        """Settings of the model; raises CheckpointError if the record has none."""
        if self._model_config is None:
            data = self.record if "model" in self.record else self.record.get("recipe")
            if not isinstance(data, dict) or "model" not in data:
                raise CheckpointError(
                    f"{self.source}/{CONFIG_FILE} describes no model",
                    hint="use a checkpoint that a recipe wrote, or add the model as `model` to this file",
                    code="checkpoint-incomplete",
                )
            self._model_config = from_data(ModelConfig, data["model"], source=f"{self.source}/{CONFIG_FILE}")
        return self._model_config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        pass  # files are opened for each read

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.tensor(name)) for name in self.shapes())

    def shapes(self, section: str = "model") -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor in a section: `model` or `optim`."""
        return {name: entry.shape for name, entry in self._reader.layout.tensors.get(section, {}).items()}

    def tensor(self, name: str, section: str = "model") -> Tensor:
        """Read a whole tensor."""
        entry = self._reader.layout.tensors[section][name]
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        self._reader.fill(entry, Box.whole(entry.shape), whole)
        return whole

    def companions(self) -> Companions:
        """Return the companion files that an import stored; there are none in a training checkpoint."""
        prefix = EXTRA_FOLDER + KEPT_BELOW
        names = [name for name in self._reader.names() if name.startswith(prefix)]
        return kept({name.removeprefix(prefix): self._reader.read_file(name) for name in names})

    def optim_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the optimizer's tensors."""
        return self.shapes("optim")

    def optim_tensor(self, name: str) -> Tensor:
        """Read one of the optimizer's tensors."""
        return self.tensor(name, "optim")


def open_model(path: str) -> ModelSource:
    """Open a model, whose weights are read on demand.

    Args:
        path: a windlass checkpoint, a folder of checkpoints (the newest is opened), a Hugging Face folder (with or
            without an `hf:` prefix), `hf:ORGANISATION/NAME` or `hf:ORGANISATION/NAME@REVISION` on its hub, or an
            OLMo-core checkpoint.

    Raises:
        NotFoundError: there is no such model.
        CheckpointError, SpecError: it is damaged, or its model is not supported.
    """
    if path.startswith(HF):
        return import_hf(_hub_folder(path.removeprefix(HF)))
    files = open_files(path)
    names = files.names()
    if FOLDER_MANIFEST in names:
        return StoredCheckpoint(path)
    committed = list_committed(files)
    if committed:
        return StoredCheckpoint(committed[-1].path)
    if is_olmo_core(files):
        return open_olmo_core(path)
    if _is_hf(files, names):
        return import_hf(path)
    raise NotFoundError(
        f"no model at {path}",
        hint="pass a folder `step-N`, a folder of these, a Hugging Face folder, or an OLMo-core checkpoint",
        code="no-checkpoint",
    )


def companions_of(source: ModelSource) -> Companions:
    """Return the tokenizer files and special ids stored with a model; OLMo-core checkpoints have only ids."""
    if isinstance(source, StoredCheckpoint):
        return source.companions()
    if isinstance(source, OlmoCoreCheckpoint):
        return Companions(ids=source.special_ids)
    folder = Path(source.source)
    return companions_in(folder) if _is_hf(open_files(source.source), ["config.json"]) else Companions()


def tokenizer_config_of(path: str, wanted: TokenizerConfig) -> TokenizerConfig:
    """Return the settings of a model's own tokenizer, with the ids of `wanted`; without a path if it has none.

    It is the one in the model's folder, the one that a checkpoint's recipe names, or the one that an import stored.
    """
    with open_model(path) as source:
        if not isinstance(source, StoredCheckpoint):
            return replace(wanted, path=source.source if companions_of(source).has_tokenizer else "")
        if companions_of(source).has_tokenizer:
            return replace(wanted, path=f"{source.source}/{EXTRA_FOLDER}{KEPT_BELOW}".rstrip("/"))
        stated = source.record.get("tokenizer") or source.record.get("recipe", {}).get("data", {}).get("tokenizer")
        found = from_data(TokenizerConfig, stated or {}, source=f"{source.source}/{CONFIG_FILE}")
    ids = {name: value for name in ("eos_id", "pad_id", "bos_id") if (value := getattr(wanted, name)) is not None}
    return replace(found, **ids)


def load_model(path: str, *, device: torch.device | str = "cpu") -> Decoder:
    """Load a model in float32 and evaluation mode. Needs as much memory as the model.

    Args:
        path: any path that `open_model` accepts.

    Raises:
        NotFoundError, CheckpointError, SpecError: see `open_model`.
    """
    with open_model(path) as source:
        with torch.device(device):
            model = Decoder(source.config)
        fill(dict(model.named_parameters()), source, path)
    model.eval()
    return model


def _is_hf(files: Files, names: list[str]) -> bool:
    if "config.json" not in names:
        return False
    try:
        data = decode_json(files.read("config.json"))
    except (ValueError, FileNotFoundError):
        return False
    return isinstance(data, dict) and ("model_type" in data or "architectures" in data)


def _hub_folder(name: str) -> Path:
    """Return a local folder, or the snapshot of a hub repository, which is downloaded unless cached."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise NotFoundError(f"no folder {name}", hint="check the path", code="no-checkpoint")
    try:
        from huggingface_hub import snapshot_download  # lazy: only for models on the hub
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise PreconditionError(
            f"no folder {name}, and huggingface_hub, which is needed to download it, is not installed",
            hint="`pip install huggingface_hub`, or pass a folder",
            code="extra-missing",
        ) from error
    repository, _, revision = name.partition("@")
    try:
        found = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"],
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise NotFoundError(
            f"cannot download {name} from the Hugging Face hub: {first}",
            hint="check the name, the network and HF_TOKEN",
            code="hub-failed",
        ) from error
    return Path(found)
