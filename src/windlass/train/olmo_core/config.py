"""Conversion of an OLMo-core config.json to model settings, without torch.

Source: ai2-olmo-core 3.0.0, nn/transformer/config.py, nn/attention, nn/rope.py; older files use a few other names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.train.hf.config import validated
from windlass.train.model.config import (
    AttentionConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
)

__all__ = ["from_olmo_core"]

_NORMS: Mapping[str, Literal["pre", "reordered", "peri"]] = {
    "default": "pre",
    "reordered_norm": "reordered",
    "peri_norm": "peri",
}
_RMS_NORMS = ("rms", "fused_rms", "qwen_rms", "cute_rms")
_REMEDY = "pass the model's config yourself, if our decoder supports it"

# Settings of a block that change what it computes, with the supported values.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "sequence_mixer.gate": (None,),
    "sequence_mixer.clip_qkv": (None,),
    "sequence_mixer.scalable_softmax": (False, None),
    "sequence_mixer.attention_sinks": (False, None),
    "sequence_mixer.dropout": (0, None),
    "sequence_mixer.type": ("attention", None),
    "sequence_mixer.name": ("default", "fused", None),
    "feed_forward.bias": (False,),
    "feed_forward.activation": ("silu", None),
    "feed_forward.name": ("default", None),
    "feed_forward_moe": (None,),
    "dropout": (0, None),
    "layer_norm.bias": (False, None),
}


class _Misfit(ValueError):
    """Error for a setting that our decoder does not support."""

    def __init__(self, setting: str, value: object) -> None:
        super().__init__(setting)
        self.setting, self.value = setting, value


_MAX_LAYERS = 100_000
"""Limit far above any model's layers, because each layer is checked before any weight."""


def from_olmo_core(data: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """Return the model that an OLMo-core config.json describes.

    Args:
        data: the whole file, or its `model`.
        source: name of the file in messages.

    Raises:
        SpecError: our decoder does not support some settings; the message names them.
    """
    model = data.get("model", data)
    try:
        found = _model(model, _max_length(data))
    except _Misfit as misfit:
        message = f"`{misfit.setting}: {misfit.value}` of OLMo-core is not supported by our decoder"
        raise SpecError([Problem(message, "unsupported-architecture", SourcePlace(source), _REMEDY)]) from misfit
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        message = f"{source} does not describe an OLMo-core model: {error!r}"
        raise SpecError([Problem(message, "unsupported-architecture", SourcePlace(source), _REMEDY)]) from error
    return validated(found, source)


def _max_length(data: Mapping[str, Any]) -> int:
    for section, key in (("train_module", "max_sequence_length"), ("dataset", "sequence_length")):
        found = (data.get(section) or {}).get(key)
        if found:
            return int(found)
    return 2048


def _model(model: Mapping[str, Any], max_length: int) -> ModelConfig:
    if model.get("block_pattern") or "name" not in model["block"]:
        raise _Misfit("block_pattern", model.get("block_pattern"))
    if model.get("name", "default") != "default":
        raise _Misfit("name", model["name"])
    layers = list(_layers(model))
    block, mixer = layers[0].block, layers[0].mixer
    windows, patterns = _windows(layers)
    rope, window_rope = _ropes(layers)
    is_qk_normed, is_per_head = mixer.get("qk_norm") is not None, bool(mixer.get("use_head_qk_norm"))
    norm = _NORMS[block["name"]]
    attention = AttentionConfig(
        num_heads=mixer["n_heads"],
        num_kv_heads=_other_than(mixer.get("n_kv_heads"), mixer["n_heads"]),
        head_dim=_other_than(mixer.get("head_dim"), model["d_model"] // mixer["n_heads"]),
        qk_norm="none" if not is_qk_normed else "head" if is_per_head else "full",
        scale=mixer.get("softmax_scale"),
        window=windows,
        window_pattern=patterns,
    )
    return ModelConfig(
        d_model=model["d_model"],
        num_layers=model["n_layers"],
        vocab_size=model["vocab_size"],
        hidden=block["feed_forward"]["hidden_size"],
        attention=attention,
        max_length=max_length,
        norm=norm,
        norm_eps=_eps(model, block, mixer),
        rope=rope,
        window_rope=window_rope,
        is_tied=bool(model.get("tie_word_embeddings")),
        embed_scale=model.get("embed_scale"),
        init_std=float(model.get("init_std", 0.02)),
        family=_family(attention, norm),
    )


def _other_than(value: int | None, default: int) -> int | None:
    return None if value == default else value


def _family(attention: AttentionConfig, norm: str) -> Literal["llama", "olmo2", "olmo3", "qwen3", "custom"]:
    match norm, attention.qk_norm:
        case "pre", "none":
            return "llama"
        case "pre", "head":
            return "qwen3"
        case "reordered", "full":
            return "olmo2" if attention.window is None else "olmo3"
    return "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Settings of a block, separated from those that differ between layers."""

    block: Mapping[str, Any]
    mixer: Mapping[str, Any]
    window: int | None
    rope: RopeConfig


def _layers(model: Mapping[str, Any]) -> Iterator[_Layer]:
    overrides = model.get("block_overrides") or {}
    if not 1 <= model["n_layers"] <= _MAX_LAYERS:
        raise _Misfit("n_layers", model["n_layers"])
    for index in range(model["n_layers"]):
        block = overrides.get(str(index), overrides.get(index, model["block"]))
        mixer = block.get("sequence_mixer", block.get("attention"))
        _check_block({**block, "sequence_mixer": mixer})
        yield _Layer(
            block={key: value for key, value in block.items() if key not in ("sequence_mixer", "attention")},
            mixer={key: value for key, value in mixer.items() if key not in ("rope", "sliding_window")},
            window=_window(mixer.get("sliding_window"), index, model["n_layers"]),
            rope=_rope(mixer["rope"], mixer.get("head_dim") or model["d_model"] // mixer["n_heads"]),
        )


def _check_block(block: Mapping[str, Any]) -> None:
    for path, values in _NEUTRAL.items():
        first, _, rest = path.partition(".")
        found = block.get(first) if not rest else (block.get(first) or {}).get(rest)
        if found not in values and found is not None:
            raise _Misfit(f"block.{path}", found)
    if block["name"] not in _NORMS:
        raise _Misfit("block.name", block["name"])
    if block["sequence_mixer"].get("bias", True):
        raise _Misfit("block.sequence_mixer.bias", True)  # OLMo-core's also covers the output


def _window(config: Mapping[str, Any] | None, layer: int, num_layers: int) -> int | None:
    if config is None:
        return None
    is_shifted = config.get("force_full_attention_on_first_layer", True)
    if (is_shifted and layer == 0) or (
        config.get("force_full_attention_on_last_layer", True) and layer == num_layers - 1
    ):
        return None
    size = config["pattern"][(layer - bool(is_shifted)) % len(config["pattern"])]
    return None if size == -1 else int(size)


def _windows(layers: list[_Layer]) -> tuple[int | None, tuple[bool, ...]]:
    """Return the window that layers have in common, and the shortest repeating group of layers."""
    first = layers[0]
    for layer in layers:
        if (layer.block, layer.mixer) != (first.block, first.mixer):
            raise _Misfit("block_overrides", "layers that differ in more than window and rope")
    sizes = {layer.window for layer in layers} - {None}
    if len(sizes) > 1:
        raise _Misfit("sliding_window.pattern", sorted(size for size in sizes if size is not None))
    flags = [layer.window is not None for layer in layers]
    length = next(n for n in range(1, len(flags) + 1) if all(flag == flags[i % n] for i, flag in enumerate(flags)))
    return next(iter(sizes), None), () if all(flags) or not any(flags) else tuple(flags[:length])


def _ropes(layers: list[_Layer]) -> tuple[RopeConfig, RopeConfig | None]:
    """Return the rotary embedding for layers without a window, and that for windowed layers if it differs."""
    by_kind = {
        is_windowed: {layer.rope for layer in layers if (layer.window is not None) == is_windowed}
        for is_windowed in (False, True)
    }
    for ropes in by_kind.values():
        if len(ropes) > 1:
            raise _Misfit("block_overrides", "rotary embeddings that differ between layers of one kind")
    full, windowed = (next(iter(by_kind[kind]), None) for kind in (False, True))
    rope = full or windowed
    assert rope is not None
    return rope, windowed if full is not None and windowed not in (None, full) else None


def _rope(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    if config.get("no_global_rope"):
        raise _Misfit("rope.no_global_rope", True)
    if config.get("name", "default") not in ("default", "fused"):
        raise _Misfit("rope.name", config["name"])
    partial = float(config.get("partial_rotary_factor") or 1.0)
    scaling = config.get("scaling")
    if scaling is None:
        return RopeConfig(theta=float(config["theta"]), partial=partial)
    kind = str(scaling.get("_CLASS_", "")).rpartition(".")[2]
    if scaling.get("attention_rescale_factor", 1.0) not in (None, 1.0) and kind != "YaRNRoPEScalingConfig":
        raise _Misfit("rope.scaling.attention_rescale_factor", scaling["attention_rescale_factor"])
    if kind == "ABFRoPEScalingConfig":
        return RopeConfig(theta=float(scaling.get("new_theta", 8_000_000)), partial=partial)
    theta = float(config["theta"])
    found = _scaling(kind, scaling)
    if isinstance(found, YarnScaling):
        found = _with_their_ramp(found, theta, int(head_dim * partial))
    return RopeConfig(theta=theta, scaling=found, partial=partial)


def _scaling(kind: str, given: Mapping[str, Any]) -> LinearScaling | Llama3Scaling | YarnScaling:
    match kind:
        case "PIRoPEScalingConfig":
            return LinearScaling(factor=float(given.get("factor", 2.0)))
        case "StepwiseRoPEScalingConfig":
            return Llama3Scaling(
                factor=float(given.get("factor", 32.0)),
                low_freq_factor=1.0 / (1.0 - given.get("low_freq_proportion", 0.0)),
                high_freq_factor=1.0 / given.get("high_freq_proportion", 0.25),
                old_length=given.get("old_context_len", 8192),
            )
        case "YaRNRoPEScalingConfig":
            return YarnScaling(
                factor=float(given.get("factor", 8.0)),
                old_length=given.get("old_context_len", 8192),
                beta_fast=float(given.get("beta_fast", 32)),
                beta_slow=float(given.get("beta_slow", 1)),
            )
    raise _Misfit("rope.scaling", kind or given)


def _with_their_ramp(scaling: YarnScaling, theta: float, size: int) -> YarnScaling:
    """Adjust the scaling for equal frequencies.

    OLMo-core's ramp ends at the last channel pair; ours may end elsewhere.

    If the ends differ, `beta_slow` is set so that our ramp ends where OLMo-core's does.
    Source: ai2-olmo-core 3.0.0, YaRNRoPEScalingConfig.compute_scaled_inv_freq.
    """
    last = size // 2 - 1
    low = max(math.floor(scaling.channel(scaling.beta_fast, theta, size)), 0)
    ours = min(math.ceil(scaling.channel(scaling.beta_slow, theta, size)), size - 1)
    if low >= last and ours < low:  # OLMo-core's scales nothing, and ours would be inverted
        rotations = _rotations(last + 0.5, scaling, theta, size)
        return replace(scaling, beta_fast=rotations, beta_slow=rotations)
    theirs = max(min(ours, last), low)  # a step at `low` if the ramp would end before it
    if low >= last or ours == theirs:
        return scaling
    return replace(scaling, beta_slow=_rotations(theirs - 0.5, scaling, theta, size))


def _rotations(channel: float, scaling: YarnScaling, theta: float, size: int) -> float:
    """Return the number of rotations for a channel, the inverse of `YarnScaling.channel`."""
    return scaling.old_length / (2 * math.pi * math.pow(theta, 2 * channel / size))


def _eps(model: Mapping[str, Any], block: Mapping[str, Any], mixer: Mapping[str, Any]) -> float:
    """Return the epsilon that all norms have in common."""
    norms = {
        "block.layer_norm": block["layer_norm"],
        "lm_head.layer_norm": model["lm_head"]["layer_norm"],
        "qk_norm": mixer.get("qk_norm"),
    }
    found = set()
    for name, norm in norms.items():
        if norm is None:
            continue
        if norm.get("name", "default") not in _RMS_NORMS:
            raise _Misfit(f"{name}.name", norm.get("name"))
        if norm.get("bias"):
            raise _Misfit(f"{name}.bias", True)
        found.add(float(norm.get("eps", 1e-5)))
    if len(found) > 1:
        raise _Misfit("layer_norm.eps", sorted(found))
    if model["lm_head"].get("bias"):
        raise _Misfit("lm_head.bias", True)
    return found.pop()
