"""Adapters in PEFT's format, in and out, and models that are a base with an adapter.

Source: PEFT 0.21, `LoraConfig`, `get_peft_model_state_dict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from windlass.core.json_text import decode_object
from windlass.train.errors import CheckpointError
from windlass.train.hf.companions import Companions
from windlass.train.hf.config import to_hf
from windlass.train.hf.convert_weights import DTYPES, DType, TensorToWrite, staged_folder, write_safetensors
from windlass.train.hf.mapped import ModelSource
from windlass.train.hf.maps import adapted_layers, hf_names, our_shapes
from windlass.train.model.adapters import check_base, merge, sampled
from windlass.train.model.config import LoRAConfig, ModelConfig

__all__ = ["PEFT_CONFIG", "Adapter", "MergedModel", "base_of_peft", "read_peft", "write_peft"]

PEFT_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "target_parameters",
    "use_qalora",
    "use_bdlora",
)
_BESIDE_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A trained adapter in memory, under windlass's names.

    Attributes:
        weights: both matrices of each layer, and a scalar head that was trained beside them.
        base: path of its base model; may be empty.
        source: path of the adapter, for messages.
        samples: values of each weight of its base; empty if unknown.
    """

    config: LoRAConfig
    weights: Mapping[str, Tensor]
    base: str
    source: str
    samples: Mapping[str, Tensor] = field(default_factory=dict)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        return {name: tuple(weight.shape) for name, weight in self.weights.items()}

    def tensor(self, name: str) -> Tensor:
        """Return a tensor."""
        return self.weights[name]


class MergedModel:
    """A base model with an adapter as one model, whose weights are merged as they are read, in the adapter's type."""

    def __init__(self, config: ModelConfig, base: ModelSource, adapter: Adapter) -> None:
        self.config, self.base, self.adapter, self.source = config, base, adapter, adapter.source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.base.__exit__(*failure)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.tensor(name)) for name in self.shapes())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight."""
        return our_shapes(self.config)

    def tensor(self, name: str) -> Tensor:
        """Read a weight of the base and merge the adapter's update.

        Raises:
            CheckpointError: it is not the base that the adapter was trained beside.
        """
        found = self.adapter.weights
        if name in found:
            return found[name]
        weight = self.base.tensor(name)
        check_base({name: sampled(weight)}, self.adapter.samples, self.base.source)
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_a" not in found:
            return weight
        return merge(weight, found[f"{layer}.lora_a"], found[f"{layer}.lora_b"], self.adapter.config.scale)


def base_of_peft(folder: Path) -> str:
    """Return the base model that an adapter's folder names."""
    base = _read_config(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise _refused(folder, f"{PEFT_CONFIG} names no base model", "add `base_model_name_or_path` to it")
    return base


def read_peft(folder: Path, config: ModelConfig) -> Adapter:
    """Read an adapter that PEFT or windlass wrote for a model with this architecture.

    Raises:
        CheckpointError: a kind of adapter that windlass does not have; the message names the setting or tensor.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file  # lazy: few runs need it

    data = _read_config(folder)
    settings = [f"{name}={data[name]!r}" for name in _UNSUPPORTED if data.get(name)]
    for name, known in (("peft_type", ("LORA",)), ("bias", ("none",)), ("init_lora_weights", _BESIDE_THE_BASE)):
        if data.get(name, known[0]) not in known:
            settings.append(f"{name}={data[name]!r}")
    if settings:
        raise _refused(folder, f"windlass has no adapters with {', '.join(settings)}")
    try:
        tensors = load_file(str(folder / _WEIGHTS))
        rank, alpha = int(data["r"]), float(data["lora_alpha"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise _refused(folder, f"cannot read it: {error!r:.200}", "copy it again") from error
    ours = {theirs: name for name, theirs in _names(config, LoRAConfig()).items()}
    unknown = [name for name in tensors if name not in ours]
    if unknown:
        raise _refused(folder, f"this model has no place for {unknown[0]}")
    weights = {ours[name]: tensor.float() for name, tensor in tensors.items()}
    layers = tuple(name for name in adapted_layers(config, LoRAConfig()) if f"{name}.lora_a" in weights)
    made = LoRAConfig(rank=rank, alpha=alpha, rslora=bool(data.get("use_rslora")), targets=layers)
    for name, shape in _shapes(config, made).items():
        found = tuple(weights[name].shape) if name in weights else None
        if found != shape and (found is not None or name != "score.weight"):
            raise _refused(folder, f"{name} has shape {found and list(found)}, not {list(shape)}")
    return Adapter(
        config=made, weights=weights, base=str(data.get("base_model_name_or_path") or ""), source=str(folder)
    )


def write_peft(
    config: ModelConfig,
    adapter: Adapter,
    folder: str | Path,
    *,
    dtype: DType = "float32",
    companions: Companions | None = None,
    overwrite: bool = False,
) -> Path:
    """Write an adapter to a folder that `peft.PeftModel.from_pretrained` loads. Atomic.

    Raises:
        SpecError: no transformers architecture has one of the model's settings.
        PreconditionError: the folder exists, or cannot be written to.
    """
    shapes = _shapes(config, adapter.config)
    names = _names(config, adapter.config)
    entries = [
        TensorToWrite(name=names[name], shape=shape, dtype=DTYPES[dtype], read=partial(adapter.tensor, name))
        for name, shape in shapes.items()
    ]
    with staged_folder(folder, overwrite=overwrite) as stage:
        write_safetensors(stage / _WEIGHTS, entries)
        text = json.dumps(_config_of(config, adapter), indent=2) + "\n"
        (stage / PEFT_CONFIG).write_text(text, encoding="utf-8")
        for name, content in (companions or Companions()).files.items():
            (stage / name).write_bytes(content)
    return Path(folder).expanduser().absolute()


def _config_of(config: ModelConfig, adapter: Adapter) -> dict[str, Any]:
    own, is_scored = adapter.config, config.head == "scalar"
    chosen, all_of_them = (set(_modules(config, each).values()) for each in (own, LoRAConfig()))
    short = sorted({name.rpartition(".")[2] for name in chosen})
    is_uniform = chosen == {name for name in all_of_them if name.rpartition(".")[2] in short}
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if is_scored else "CAUSAL_LM",
        "base_model_name_or_path": adapter.base.removeprefix("hf:"),
        "r": own.rank,
        "lora_alpha": own.alpha if own.alpha % 1 else int(own.alpha),
        "lora_dropout": own.dropout,
        "use_rslora": own.rslora,
        "target_modules": short if is_uniform else sorted(chosen),
        "modules_to_save": ["score"] if is_scored else None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _names(config: ModelConfig, adapter: LoRAConfig) -> dict[str, str]:
    """Return PEFT's name of each tensor of an adapter."""
    names: dict[str, str] = {}
    for layer, module in _modules(config, adapter).items():
        names[f"{layer}.lora_a"] = f"{_PREFIX}{module}.lora_A.weight"
        names[f"{layer}.lora_b"] = f"{_PREFIX}{module}.lora_B.weight"
    return names | ({"score.weight": f"{_PREFIX}score.weight"} if config.head == "scalar" else {})


def _shapes(config: ModelConfig, adapter: LoRAConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (num_out, num_in) in adapted_layers(config, adapter).items():
        shapes |= {f"{layer}.lora_a": (adapter.rank, num_in), f"{layer}.lora_b": (num_out, adapter.rank)}
    return shapes | ({"score.weight": (1, config.d_model)} if config.head == "scalar" else {})


def _modules(config: ModelConfig, adapter: LoRAConfig) -> dict[str, str]:
    """Return transformers' name of each layer that is adapted."""
    theirs = {weight.ours: weight.theirs[0] for weight in hf_names(to_hf(config)["model_type"]).weights(config)}
    return {name: theirs[f"{name}.weight"].removesuffix(".weight") for name in adapted_layers(config, adapter)}


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return dict(decode_object((folder / PEFT_CONFIG).read_bytes()))
    except (OSError, ValueError) as error:
        raise _refused(folder, f"cannot read {PEFT_CONFIG}: {error}", "copy it again") from error


def _refused(
    folder: Path, why: str, hint: str = "merge it with PEFT's `merge_and_unload`, and start from the result"
) -> CheckpointError:
    return CheckpointError(f"adapter {folder}: {why}", hint=hint, code="foreign-checkpoint")
