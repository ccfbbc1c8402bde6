"""Models from any source: windlass checkpoints, Hugging Face folders, OLMo-core checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from windlass.config.encode import to_data
from windlass.config.loading import from_data
from windlass.core.errors import NotFoundError, PreconditionError, Problem, SpecError, WindlassError
from windlass.core.json_text import decode_json
from windlass.record.manifest import FOLDER_MANIFEST
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.checkpoint.layout import Box
from windlass.train.checkpoint.listing import EXTRA_FOLDER, list_committed
from windlass.train.checkpoint.reading import CONFIG_FILE, TRAINER_FILE, CheckpointReader, damaged
from windlass.train.checkpoint.tensors import DTYPES
from windlass.train.data.config import TokenizerConfig
from windlass.train.errors import CheckpointError
from windlass.train.hf.companions import KEPT_BELOW, Companions, companions_in, files_in, kept
from windlass.train.hf.convert_weights import import_hf
from windlass.train.hf.mapped import ModelSource, fill
from windlass.train.hf.maps import our_shapes
from windlass.train.hf.peft import PEFT_CONFIG, Adapter, MergedModel, base_of_peft, read_peft
from windlass.train.model.config import LoRAConfig, ModelConfig, StoredAdapter
from windlass.train.model.decoder import Decoder
from windlass.train.olmo_core.checkpoint import OlmoCoreCheckpoint, is_olmo_core, open_olmo_core

__all__ = [
    "StoredCheckpoint",
    "adapter_config_of",
    "adapter_record",
    "companions_of",
    "kept_folder_of",
    "load_model",
    "open_adapter",
    "open_model",
    "tokenizer_config_of",
]

HF = "hf:"


class StoredCheckpoint:
    """Windlass checkpoint, read without a process group, with verified checksums.

    One that holds an adapter is read as its base model with the adapter merged; `adapter` returns the adapter alone.

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
        self._merged: MergedModel | None = None

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
        if self._merged is not None:  # own files are opened for each read
            self._merged.__exit__(*failure)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.tensor(name)) for name in self.shapes())

    @property
    def has_adapter(self) -> bool:
        """Return whether it holds an adapter, not a whole model."""
        return self.record.get("adapter") is not None

    def adapter(self) -> Adapter:
        """Read the adapter. Raises CheckpointError if there is none."""
        stated = self.record.get("adapter")
        if not isinstance(stated, dict):
            raise CheckpointError(
                f"{self.source} has no adapter",
                hint="use a checkpoint of a run with `adapter`",
                code="checkpoint-incomplete",
            )
        place, sections = f"{self.source}/{CONFIG_FILE}", self._reader.layout.tensors
        return Adapter(
            config=from_data(LoRAConfig, stated["config"], source=place),
            weights={name: self._stored(name, "model") for name in sections["model"]},
            base=str(stated["base"]),
            source=self.source,
            samples={name: self._stored(name, "base") for name in sections["base"]},
        )

    def _merge(self) -> MergedModel:
        """Open the base model, once."""
        if self._merged is None:
            adapter = self.adapter()
            self._merged = MergedModel(self.config, _open_base(adapter.base, self.source), adapter)
        return self._merged

    def shapes(self, section: str = "model") -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor in a section: `model` or `optim`."""
        if section == "model" and self.has_adapter:
            return our_shapes(self.config)
        return {name: entry.shape for name, entry in self._reader.layout.tensors.get(section, {}).items()}

    def tensor(self, name: str, section: str = "model") -> Tensor:
        """Read a whole tensor."""
        return self._merge().tensor(name) if section == "model" and self.has_adapter else self._stored(name, section)

    def _stored(self, name: str, section: str) -> Tensor:
        entry = self._reader.layout.tensors[section][name]
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        self._reader.fill(entry, Box.whole(entry.shape), whole)
        return whole

    def companions(self) -> Companions:
        """Return the companion files that an import or a post-training run stored; others have none."""
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
            without an `hf:` prefix), `hf:ORGANISATION/NAME` or `hf:ORGANISATION/NAME@REVISION` on its hub, a folder
            of a PEFT adapter, which is merged with the base model that it names, or an OLMo-core checkpoint.

    Raises:
        NotFoundError: there is no such model.
        CheckpointError, SpecError: it is damaged, or its model is not supported.
    """
    if path.startswith(HF):
        folder = _hub_folder(path.removeprefix(HF))
        return _merged_peft(folder) if (folder / PEFT_CONFIG).is_file() else import_hf(folder)
    files = open_files(path)
    names = files.names()
    if PEFT_CONFIG in names:
        return _merged_peft(Path(path).expanduser())
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


def open_adapter(path: str, config: ModelConfig) -> Adapter:
    """Read an adapter for a model with this architecture: PEFT's folder, a checkpoint, or a folder of these.

    Raises:
        NotFoundError, CheckpointError: there is no adapter, or it is of another kind or model.
    """
    name = path.removeprefix(HF)
    if path.startswith(HF) or (Path(name).expanduser() / PEFT_CONFIG).is_file():
        return read_peft(_hub_folder(name), config)
    with open_model(path) as source:
        if not isinstance(source, StoredCheckpoint):
            raise CheckpointError(
                f"{path} has no adapter", hint="use a checkpoint of a run with `adapter`", code="checkpoint-incomplete"
            )
        return source.adapter()


def adapter_config_of(stored: StoredAdapter, config: ModelConfig) -> LoRAConfig:
    """Return the settings of a stored adapter. Raises SpecError if it cannot be read."""
    try:
        return replace(open_adapter(stored.path, config).config, dropout=stored.dropout)
    except WindlassError as error:
        raise SpecError([Problem(f"adapter.from: {error.message}", error.code, hint=error.hint)]) from error


def adapter_record(adapter: LoRAConfig, base: str) -> dict[str, object]:
    """Return what a checkpoint says of its adapter: its settings, and the path of its base, as it is found now."""
    with open_model(base) as source:
        is_hub = base.startswith(HF) and not Path(base.removeprefix(HF)).expanduser().exists()
        is_local = "://" not in source.source
        place = base if is_hub else str(Path(source.source).absolute()) if is_local else source.source
    return {"config": to_data(adapter, keep_defaults=True), "base": place}


def _merged_peft(folder: Path) -> MergedModel:
    base = base_of_peft(folder)
    is_here = "://" in base or Path(base).expanduser().exists()
    source = _open_base(base if is_here else HF + base, str(folder))
    try:
        return MergedModel(source.config, source, read_peft(folder, source.config))
    except BaseException:
        source.__exit__()
        raise


def _open_base(path: str, adapter: str) -> ModelSource:
    try:
        return open_model(path)
    except NotFoundError as error:
        raise CheckpointError(
            f"the base model of adapter {adapter}: {error.message}",
            hint="put it back, or train with `model.from=BASE adapter.from=ADAPTER`",
            code="checkpoint-incomplete",
        ) from error


def companions_of(source: ModelSource) -> Companions:
    """Return the tokenizer files and special ids stored with a model; OLMo-core checkpoints have only ids."""
    if isinstance(source, StoredCheckpoint):
        return source.companions()
    if isinstance(source, MergedModel):
        found, own = companions_of(source.base), files_in(Path(source.source))
        return replace(found, files={**found.files, **own}) if own else found
    if isinstance(source, OlmoCoreCheckpoint):
        return Companions(ids=source.special_ids)
    folder = Path(source.source)
    return companions_in(folder) if _is_hf(open_files(source.source), ["config.json"]) else Companions()


def tokenizer_config_of(path: str, wanted: TokenizerConfig) -> TokenizerConfig:
    """Return the settings of a model's own tokenizer, with the ids of `wanted`; without a path if it has none.

    It is the one in the model's folder, the one that a checkpoint's recipe names, or the one that the checkpoint has stored.
    """
    with open_model(path) as source:
        if not isinstance(source, StoredCheckpoint):
            return replace(wanted, path=source.source if companions_of(source).has_tokenizer else "")
        kept = _kept_folder(source)
        stated = source.record.get("tokenizer") or source.record.get("recipe", {}).get("data", {}).get("tokenizer")
        found = from_data(TokenizerConfig, stated or {}, source=f"{source.source}/{CONFIG_FILE}")
        if kept and found.path != "bytes":
            found = replace(found, path=kept)
    ids = {name: value for name in ("eos_id", "pad_id", "bos_id") if (value := getattr(wanted, name)) is not None}
    return replace(found, **ids)


def kept_folder_of(path: str) -> str:
    """Return the folder of the tokenizer that is stored in a checkpoint; empty if there is none."""
    with open_model(path) as source:
        return _kept_folder(source) if isinstance(source, StoredCheckpoint) else ""


def _kept_folder(source: StoredCheckpoint) -> str:
    return f"{source.source}/{EXTRA_FOLDER}{KEPT_BELOW}".rstrip("/") if source.companions().has_tokenizer else ""


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
