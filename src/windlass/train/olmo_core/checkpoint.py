"""OLMo-core checkpoint, read as a model under windlass's names and its optimizer's state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from windlass.core.errors import Problem, SpecError
from windlass.core.json_text import decode_json
from windlass.train.checkpoint.dcp_reader import DcpCheckpoint, read_dcp
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.errors import CheckpointError
from windlass.train.hf.mapped import MappedWeights
from windlass.train.hf.maps import NameMap, WeightRule
from windlass.train.model.config import ModelConfig
from windlass.train.olmo_core.config import from_olmo_core

__all__ = ["OLMO_CORE", "OlmoCoreCheckpoint", "is_olmo_core", "open_olmo_core"]

_FFN = {"gate": "w1", "up": "w3", "down": "w2"}

OLMO_CORE = NameMap(
    (
        WeightRule("embed.weight", "embeddings.weight"),
        WeightRule("norm.weight", "lm_head.norm.weight"),
        WeightRule("head.weight", "lm_head.w_out.weight"),
        *(WeightRule(f"blocks.{{i}}.attention.{x}.weight", f"blocks.{{i}}.attention.w_{x}.weight") for x in "qkv"),
        WeightRule("blocks.{i}.attention.o.weight", "blocks.{i}.attention.w_out.weight"),
        *(
            WeightRule(f"blocks.{{i}}.attention.{x}_norm.weight", f"blocks.{{i}}.attention.{x}_norm.weight")
            for x in ("q", "k")
        ),
        *(
            WeightRule(f"blocks.{{i}}.ffn.{ours}.weight", f"blocks.{{i}}.feed_forward.{theirs}.weight")
            for ours, theirs in _FFN.items()
        ),
        WeightRule("blocks.{i}.attention_norm.weight", "blocks.{i}.attention_norm.weight"),
        WeightRule("blocks.{i}.ffn_norm.weight", "blocks.{i}.feed_forward_norm.weight"),
        WeightRule("blocks.{i}.attention_post_norm.weight", "blocks.{i}.post_attention_norm.weight"),
        WeightRule("blocks.{i}.ffn_post_norm.weight", "blocks.{i}.post_feed_forward_norm.weight"),
    )
)


_FOLDER = "model_and_optim"
_STEP = re.compile(r"step([0-9]+)")


class OlmoCoreCheckpoint(MappedWeights):
    """Weights of an OLMo-core checkpoint, and the optimizer's state for each.

    Attributes:
        step: step in the folder's name; 0 if there is none.
        special_ids: special ids of the tokenizer in its config.json, by Hugging Face's names.
    """

    def __init__(
        self, config: ModelConfig, found: DcpCheckpoint, source: str, special_ids: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(config, OLMO_CORE, _Model(found), source)
        self._found, self.special_ids = found, dict(special_ids or {})
        match = _STEP.fullmatch(source.rstrip("/").rpartition("/")[2])
        self.step = int(match[1]) if match is not None else 0

    def optim_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the optimizer's state, by our weight name and its state name: `norm.weight.exp_avg`."""
        return {ours: self._found[theirs].shape for ours, theirs in self._optim_names().items()}

    def optim_tensor(self, name: str) -> Tensor:
        """Read a tensor from the optimizer's state."""
        return self._found[self._optim_names()[name]].read()

    def _optim_names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        ours_of = {weight.theirs[0]: ours for ours, weight in self.names().items()}
        for name in self._found:
            weight, _, state = name.removeprefix("optim.state.").rpartition(".")
            if name.startswith("optim.state.") and weight in ours_of:
                found[f"{ours_of[weight]}.{state}"] = name
        return found


class _Model:
    """Weights in a foreign checkpoint, without the prefix that separates them from the optimizer's state."""

    def __init__(self, found: DcpCheckpoint) -> None:
        self._found = found

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            name.removeprefix("model."): entry.shape for name, entry in self._found.items() if name.startswith("model.")
        }

    def tensor(self, name: str) -> Tensor:
        return self._found[f"model.{name}"].read()


def is_olmo_core(files: Files) -> bool:
    """Return whether a folder is an OLMo-core checkpoint, its `model_and_optim`, or contains such checkpoints."""
    return _has_contents(files) or _has_contents(files.at(_FOLDER)) or _newest(files) is not None


def open_olmo_core(path: str, config: ModelConfig | None = None) -> OlmoCoreCheckpoint:
    """Open an OLMo-core checkpoint, whose weights are read on demand.

    Args:
        path: `.../step1000`, its `model_and_optim`, or a folder of checkpoints (the newest is opened); may be a URL.
        config: settings of the model, if the checkpoint has no config.json.

    Raises:
        CheckpointError: there is none, it is damaged, its metadata is not torch's, or the weights do not match the
            model.
        SpecError: our decoder does not support the model's settings.
    """
    files = open_files(path)
    newest = None if _has_contents(files) or _has_contents(files.at(_FOLDER)) else _newest(files)
    files = files.at(newest) if newest is not None else files
    inner = files if _has_contents(files) else files.at(_FOLDER)
    found = read_dcp(inner.path)
    source = files.path.rstrip("/").removesuffix(f"/{_FOLDER}")
    if config is not None:
        return OlmoCoreCheckpoint(config, found, source)
    data, name = _read_config(files, path)
    return OlmoCoreCheckpoint(from_olmo_core(data, source=name), found, source, _special_ids(data))


def _has_contents(files: Files) -> bool:
    return ".metadata" in files.names()


def _newest(files: Files) -> str | None:
    steps = [(int(match[1]), name) for name in files.names() if (match := _STEP.fullmatch(name)) is not None]
    return next((name for _, name in sorted(steps, reverse=True) if _has_contents(files.at(name).at(_FOLDER))), None)


def _special_ids(data: Mapping[str, Any]) -> Mapping[str, int]:
    tokenizer = (data.get("dataset") or {}).get("tokenizer") or {}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: tokenizer[name] for name in names if isinstance(tokenizer.get(name), int)}


def _read_config(files: Files, path: str) -> tuple[Mapping[str, Any], str]:
    """Return a checkpoint's config.json and the path of that file."""
    folder, _, last = files.path.rstrip("/").rpartition("/")
    place = open_files(folder) if last == _FOLDER else files
    source = f"{place.path}/config.json"
    try:
        data = decode_json(place.read("config.json"))
    except FileNotFoundError as error:
        message = f"{place.path} has no config.json; the model of {path} is unknown"
        hint = "OLMo-core's ConfigSaver writes one; use a checkpoint that has it"
        raise CheckpointError(message, hint=hint, code="checkpoint-incomplete") from error
    except ValueError as error:
        problem = Problem(f"cannot read {source}: {error}", "unsupported-architecture", hint="copy it again")
        raise SpecError([problem]) from error
    if not isinstance(data, dict):
        problem = Problem(f"{source} is not a mapping", "unsupported-architecture", hint="copy it again")
        raise SpecError([problem])
    return data, source
