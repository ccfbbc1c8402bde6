"""A model's configuration to and from transformers' config.json; no torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import Place, Problem, SpecError
from windlass.core.json_text import read_json
from windlass.train.hf.families import FAMILIES, Architecture, architecture_of
from windlass.train.hf.rope import RopeProblem, read_rope, write_rope
from windlass.train.hf.settings import REMEDY, setting_problems
from windlass.train.model.config import AttentionConfig, ModelConfig, MoEConfig, RopeConfig

__all__ = ["from_hf", "model_of_folder", "read_config", "to_hf", "validated"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def to_hf(config: ModelConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """The config.json of a model, by the newest names and by those of transformers 4.

    Args:
        dtype: of the weights beside it, such as `bfloat16`.

    Raises:
        SpecError: no architecture of transformers has one of the settings; names it.
    """
    known = architecture_of(config)
    if isinstance(known, tuple):
        raise SpecError([_inexpressible(*known)])
    data: dict[str, Any] = {
        "architectures": [known.causal_lm],
        "model_type": known.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.attention.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_length,
        "initializer_range": config.init_std,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.is_tied,
        "attention_dropout": 0.0,
        # Tokens are the tokenizer's affair; unset, transformers would take numbers of another vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if not known.bias:
        data["attention_bias"] = False
    data.update(_windows_to_hf(known, config))
    data.update(write_rope(known, config))
    data.update(_experts_to_hf(known, config.moe))
    return data


def _inexpressible(known: Architecture, obstacles: Sequence[str]) -> Problem:
    names = ", ".join(f"`{name}`" for name in obstacles)
    return Problem(
        f"transformers has no architecture for this model; {known.model_type} is the nearest, without {names}",
        "hf-setting",
        hint="change the setting before training, or share the windlass checkpoint instead",
    )


def _windows_to_hf(known: Architecture, config: ModelConfig) -> dict[str, Any]:
    if known.windows == "none":
        return {}
    attention, has_window = config.attention, config.attention.window is not None
    data: dict[str, Any] = {"sliding_window": attention.window}
    if known.model_type.startswith("qwen"):
        data["use_sliding_window"] = has_window
        data["max_window_layers"] = config.num_layers
    if known.windows == "layers":
        pattern = attention.window_pattern or (True,)
        flags = [has_window and pattern[i % len(pattern)] for i in range(config.num_layers)]
        data["layer_types"] = [_SLIDING if flag else _FULL for flag in flags]
    return data


def _experts_to_hf(known: Architecture, moe: MoEConfig | None) -> dict[str, Any]:
    if moe is None:
        return {}
    data = {
        known.expert_size: moe.hidden,
        known.expert_count: moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "router_aux_loss_coef": moe.balance_loss,
    }
    return data if known.always_normalizes else {**data, "norm_topk_prob": moe.normalize}


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model's folder. Raises SpecError with all that is wrong in it."""
    path = folder / "config.json"
    try:
        data = read_json(path)
    except FileNotFoundError as error:
        problem = Problem(f"{folder} has no config.json", "hf-files", hint="give the folder of a model")
        raise SpecError([problem]) from error
    except (OSError, ValueError) as error:
        raise SpecError([Problem(f"{path} cannot be read: {error}", "hf-files", hint="copy it again")]) from error
    if not isinstance(data, dict):
        raise SpecError([Problem(f"{path} holds no mapping", "hf-files", hint="copy it again")])
    return from_hf(data, source=str(path))


def model_of_folder(folder: str) -> ModelConfig:
    """What `model: hf:FOLDER` stands for: the architecture alone, no weights.

    Raises:
        ValueError: with what to type instead.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        hint = (
            f"; fetch it first: `hf download {folder} --local-dir DIR`, then `hf:DIR`" if folder.count("/") == 1 else ""
        )
        raise ValueError(f"there is no folder `{folder}`{hint}")
    try:
        return read_config(path)
    except SpecError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error


def from_hf(data: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """The model that a config.json describes.

    Args:
        source: its name, for messages.

    Raises:
        SpecError: an architecture or settings that our decoder does not have; every one is named.
    """
    known = next((known for known in FAMILIES if known.model_type == data.get("model_type")), None)
    if known is None:
        raise SpecError([_unknown_architecture(data.get("model_type"), source)])
    problems = list(setting_problems(data, source))
    if problems:
        raise SpecError(problems)
    full = {**known.defaults, **{key: value for key, value in data.items() if value is not None}}
    if "sliding_window" in data and data["sliding_window"] is None:
        full["sliding_window"] = None
    try:
        rope, window_rope = read_rope(known, full)
    except RopeProblem as problem:
        raise SpecError([Problem(str(problem), "hf-setting", Place(source), REMEDY)]) from problem
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        message = f"the rotary embedding cannot be read: {error}"
        raise SpecError([Problem(message, "hf-setting", Place(source), REMEDY)]) from error
    try:
        model = _model(known, full, rope, window_rope)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        message = f"a setting is of another type than transformers writes: {error!r:.200}"
        raise SpecError([Problem(message, "hf-setting", Place(source), "copy config.json again")]) from error
    return validated(model, source)


def _model(
    known: Architecture, full: Mapping[str, Any], rope: RopeConfig, window_rope: RopeConfig | None
) -> ModelConfig:
    attention = _attention(known, full)
    return ModelConfig(
        d_model=full["hidden_size"],
        num_layers=full["num_hidden_layers"],
        vocab_size=full["vocab_size"],
        hidden=full["intermediate_size"],
        attention=attention,
        max_length=full["max_position_embeddings"],
        norm=known.norm,
        norm_eps=float(full["rms_norm_eps"]),
        rope=rope,
        window_rope=window_rope if attention.window is not None else None,
        moe=_experts(known, full),
        is_tied=full.get("tie_word_embeddings", False),
        init_std=float(full.get("initializer_range", 0.02)),
        family=known.family,
    )


def _unknown_architecture(name: object, source: str) -> Problem:
    names = ", ".join(known.model_type for known in FAMILIES)
    message = f"there is no decoder here for model_type {name}" if name else "config.json names no `model_type`"
    return Problem(message, "hf-architecture", Place(source), f"one of: {names}")


def _attention(known: Architecture, full: Mapping[str, Any]) -> AttentionConfig:
    heads, width = full["num_attention_heads"], full["hidden_size"]
    kv_heads, head_dim = full.get("num_key_value_heads", heads), full.get("head_dim")
    window, pattern = _windows(known, full)
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        head_dim=None if head_dim is None or head_dim * heads == width else head_dim,
        bias=known.bias,
        qk_norm=known.qk_norm,
        window=window,
        window_pattern=pattern,
    )


def _windows(known: Architecture, full: Mapping[str, Any]) -> tuple[int | None, tuple[bool, ...]]:
    """The window and the shortest group of layers that repeats."""
    window = full.get("sliding_window")
    if known.windows == "none" or window is None or full.get("use_sliding_window") is False:
        return None, ()
    if known.windows == "all":
        return window, ()
    flags = _window_flags(known, full)
    if not any(flags):
        return None, ()
    return window, () if all(flags) else _period(flags)


def _window_flags(known: Architecture, full: Mapping[str, Any]) -> list[bool]:
    num_layers = full["num_hidden_layers"]
    if "layer_types" in full:
        return [kind == _SLIDING for kind in full["layer_types"]][:num_layers]
    if known.model_type == "olmo3":
        return [(i + 1) % 4 != 0 for i in range(num_layers)]
    return [i >= full["max_window_layers"] for i in range(num_layers)]


def _period(flags: Sequence[bool]) -> tuple[bool, ...]:
    sizes = range(1, len(flags) + 1)
    size = next(n for n in sizes if all(flag == flags[i % n] for i, flag in enumerate(flags)))
    return tuple(flags[:size])


def _experts(known: Architecture, full: Mapping[str, Any]) -> MoEConfig | None:
    if not known.is_moe:
        return None
    return MoEConfig(
        num_experts=full["num_local_experts"] if "num_local_experts" in full else full["num_experts"],
        top_k=full["num_experts_per_tok"],
        hidden=full[known.expert_size],
        normalize=full["norm_topk_prob"],
        balance_loss=float(full["router_aux_loss_coef"]),
    )


def validated(config: ModelConfig, source: str) -> ModelConfig:
    """The same, with our own checks of types and ranges made."""
    from windlass.config import (
        from_data,
        to_data,
    )  # lazy: a start without an import does not need the decoder of configs

    return from_data(ModelConfig, to_data(config, keep_defaults=True), source=source)
