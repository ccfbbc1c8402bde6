"""Checkpoints as OLMo-core writes them, written without it: the same names, the same files, the same classes."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.olmo_core.checkpoint import OLMO_CORE

__all__ = ["BASE", "block", "model_data", "rope", "state_of", "write"]

BASE = "olmo_core.distributed.checkpoint.filesystem"


def rope(**changes: Any) -> dict[str, Any]:
    """A rotary embedding's settings."""
    return {
        "name": "default",
        "theta": 500000,
        "full_precision": True,
        "no_global_rope": False,
        "partial_rotary_factor": 1.0,
        "_CLASS_": "olmo_core.nn.rope.RoPEConfig",
        **changes,
    }


def _norm(eps: float = 1e-6) -> dict[str, Any]:
    return {"name": "rms", "eps": eps, "bias": False, "dtype": "float32"}


def block(mixer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A block's settings, those of OLMo 2."""
    base = {
        "name": "default",
        "type": "attention",
        "n_heads": 4,
        "bias": False,
        "rope": rope(),
        "qk_norm": _norm(),
        "use_head_qk_norm": False,
        "scalable_softmax": False,
        "attention_sinks": False,
        "dtype": "float32",
    }
    return {
        "sequence_mixer": {**base, **(mixer or {})},
        "layer_norm": _norm(),
        "feed_forward": {"hidden_size": 48, "name": "default", "bias": False, "activation": "silu"},
        "name": "reordered_norm",
        **changes,
    }


def model_data(the_block: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The `model` of a config.json."""
    return {
        "d_model": 32,
        "vocab_size": 97,
        "n_layers": 4,
        "block": the_block or block(),
        "lm_head": {"name": "default", "layer_norm": _norm(), "bias": False},
        "name": "default",
        "init_std": 0.02,
        "tie_word_embeddings": False,
        "_CLASS_": "olmo_core.nn.transformer.config.TransformerConfig",
        **changes,
    }


def state_of(model: Decoder, config: ModelConfig) -> dict[str, Any]:
    """What OLMo-core saves of a model, with moments of an AdamW that took three steps."""
    theirs = {weight.ours: weight.theirs[0] for weight in OLMO_CORE.weights(config)}
    weights = {theirs[name]: tensor.detach().clone() for name, tensor in model.named_parameters()}
    moments = {name: _moments(tensor) for name, tensor in weights.items()}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.95), "params": list(weights)}]
    return {"model": weights, "optim": {"state": moments, "param_groups": groups}}


def _moments(tensor: Tensor) -> dict[str, Tensor]:
    return {"step": torch.tensor(3.0), "exp_avg": tensor * 0.5, "exp_avg_sq": tensor**2}


def write(folder: Path, state: dict[str, Any], config: dict[str, Any] | None) -> Path:
    """Write a checkpoint folder; its list of contents names OLMo-core's own class for places in files."""
    inner = folder / "model_and_optim"
    dcp.save(state, checkpoint_id=inner, no_dist=True)
    _rename_places(inner / ".metadata")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _rename_places(path: Path) -> None:
    metadata = pickle.loads(path.read_bytes())
    module = types.ModuleType(BASE)
    place = type("_StorageInfo", (), {"__module__": BASE})
    module._StorageInfo = place  # type: ignore[attr-defined]
    sys.modules.update(dict.fromkeys(_parents(BASE), module))
    try:
        for index, found in metadata.storage_data.items():
            made = place()
            made.__dict__.update(relative_path=found.relative_path, offset=found.offset, length=found.length)
            metadata.storage_data[index] = made
        path.write_bytes(pickle.dumps(metadata))
    finally:
        for name in _parents(BASE):
            del sys.modules[name]


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
