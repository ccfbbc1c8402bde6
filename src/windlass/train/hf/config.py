"""Conversion of model settings to and from transformers' config.json, without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.core.json_text import read_json
from windlass.train.hf.families import FAMILIES, Architecture, architecture_of
from windlass.train.hf.rope import RopeProblem, read_rope, write_rope
from windlass.train.model.config import AttentionConfig, ModelConfig, MoEConfig, RopeConfig

__all__ = ["REMEDY", "from_hf", "model_of_folder", "read_config", "setting_problems", "to_hf", "validated"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def to_hf(config: ModelConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """Return the config.json for a model, with both the newest names and those of transformers 4.

    Args:
        dtype: type of the weights beside it, such as `bfloat16`.

    Raises:
        SpecError: no transformers architecture has one of the settings; the message names it.
    """
    known = architecture_of(config)
    if isinstance(known, tuple):
        raise SpecError([_inexpressible(*known)])
    data: dict[str, Any] = {
        "architectures": [known.causal_lm if config.head == "vocabulary" else _scored(known.causal_lm)],
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
        # The tokenizer defines special ids; if unset, transformers would use ids of another vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if config.head == "scalar":
        data |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if not known.bias:
        data["attention_bias"] = False
    data.update(_windows_to_hf(known, config))
    data.update(write_rope(known, config))
    data.update(_experts_to_hf(known, config.moe))
    return data


_CAUSAL, _SCORED = "ForCausalLM", "ForSequenceClassification"


def _scored(causal_lm: str) -> str:
    """Return the name of the class with a scalar head beside a causal language model's."""
    return causal_lm.removesuffix(_CAUSAL) + _SCORED


def _inexpressible(known: Architecture, obstacles: Sequence[str]) -> Problem:
    names = ", ".join(f"`{name}`" for name in obstacles)
    return Problem(
        f"transformers has no architecture for this model; {known.model_type} is the nearest, without {names}",
        "unsupported-architecture",
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
    """Read the configuration in a model's folder. Raises SpecError with all its problems."""
    path = folder / "config.json"
    try:
        data = read_json(path)
    except FileNotFoundError as error:
        problem = Problem(f"{folder} has no config.json", "foreign-checkpoint", hint="pass the folder of a model")
        raise SpecError([problem]) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            [Problem(f"cannot read {path}: {error}", "foreign-checkpoint", hint="copy it again")]
        ) from error
    if not isinstance(data, dict):
        raise SpecError([Problem(f"{path} is not a mapping", "foreign-checkpoint", hint="copy it again")])
    return from_hf(data, source=str(path))


def model_of_folder(folder: str) -> ModelConfig:
    """Read the architecture for `model: hf:FOLDER`, without weights.

    Raises:
        ValueError: the folder is missing or unsupported; the message says what to type instead.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        hint = (
            f"; download it first: `hf download {folder} --local-dir DIR`, then `hf:DIR`"
            if folder.count("/") == 1
            else ""
        )
        raise ValueError(f"no folder `{folder}`{hint}")
    try:
        return read_config(path)
    except SpecError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error


def from_hf(data: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """Return the model that a config.json describes.

    Args:
        source: name of the file in messages.

    Raises:
        SpecError: our decoder does not support its architecture or settings; the message names all of them.
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
        raise SpecError([Problem(str(problem), "unsupported-architecture", SourcePlace(source), REMEDY)]) from problem
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        message = f"cannot read the rotary embedding: {error}"
        raise SpecError([Problem(message, "unsupported-architecture", SourcePlace(source), REMEDY)]) from error
    try:
        model = _model(known, full, rope, window_rope)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        message = f"a setting has another type than transformers writes: {error!r:.200}"
        raise SpecError(
            [Problem(message, "unsupported-architecture", SourcePlace(source), "copy config.json again")]
        ) from error
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
        head="scalar" if str((full.get("architectures") or [""])[0]).endswith(_SCORED) else "vocabulary",
        is_tied=full.get("tie_word_embeddings", False),
        init_std=float(full.get("initializer_range", 0.02)),
        family=known.family,
    )


def _unknown_architecture(name: object, source: str) -> Problem:
    names = ", ".join(known.model_type for known in FAMILIES)
    message = f"unsupported model_type {name}" if name else "config.json has no `model_type`"
    return Problem(message, "unsupported-architecture", SourcePlace(source), f"one of: {names}")


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
    """Return the window, and the shortest repeating group of layers as flags for which of them have it."""
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
    """Return the configuration after checking its types and ranges."""
    from windlass.config.encode import to_data
    from windlass.config.loading import from_data  # lazy: a start without an import does not need the config decoder

    return from_data(ModelConfig, to_data(config, keep_defaults=True), source=source)


REMEDY = "use another model, or remove the setting from config.json if it changes nothing"

# Settings without an equivalent, and the values with which they have no effect.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "decoder_sparse_step": (1, None),
    "embedding_multiplier": (1, None),
    "final_logit_softcapping": (None,),
    "hidden_act": ("silu", "swish", None),
    "hidden_activation": ("silu", None),
    "is_encoder_decoder": (False, None),
    "layer_norm_eps": (None,),
    "mlp_bias": (False, None),
    "mlp_only_layers": ([], (), None),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
    "rope_interleaved": (False, None),
    "router_jitter_noise": (0, None),
}
# Settings that do not affect what a model computes, or that are read below.
_KNOWN = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "head_dim",
        "hidden_size",
        "id2label",
        "initializer_range",
        "intermediate_size",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "layer_types",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "moe_intermediate_size",
        "name_or_path",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "router_aux_loss_coef",
        "sep_token_id",
        "sliding_window",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
        "vocab_size",
    }
)
_MAX_LAYERS, _MAX_SIZE = 100_000, 1 << 31
"""Limit far above any model's layers, because each layer is checked before any weight."""
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")


def setting_problems(data: Mapping[str, Any], source: str) -> Iterator[Problem]:
    """Yield a problem for each setting in a config.json that our model does not support."""
    for key in _REQUIRED:
        value = data.get(key)
        most = _MAX_LAYERS if key == "num_hidden_layers" else _MAX_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            yield Problem(
                f"`{key}` is {value!r}; expected an integer from 1 to {most}",
                "unsupported-architecture",
                SourcePlace(source),
                "copy config.json again",
            )
    for key, value in sorted(data.items()):
        neutral = _NEUTRAL.get(key)
        if neutral is not None:
            if value not in neutral:
                yield Problem(
                    f"`{key}: {json.dumps(value)}` is not supported by our decoder",
                    "unsupported-architecture",
                    SourcePlace(source),
                    REMEDY,
                )
        elif key not in _KNOWN and value is not None:
            yield Problem(
                f"unknown setting `{key}: {json.dumps(value)}`", "unsupported-architecture", SourcePlace(source), REMEDY
            )
