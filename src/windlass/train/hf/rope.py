"""Conversion of rotary embeddings to and from config.json, with the keys of transformers 4 and 5.

OLMo 3 has one per type of layer; in transformers 4, windowed layers use the same one without scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.train.hf.families import Architecture
from windlass.train.model.config import LinearScaling, Llama3Scaling, ModelConfig, RopeConfig, YarnScaling

__all__ = ["RopeProblem", "read_rope", "write_rope"]

_READ_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"}
    ),
}
_LAYERED_THETA = 500_000.0
"""Theta that transformers 5 uses for windowed layers that set none, whatever `rope_theta` is."""
_ALWAYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


class RopeProblem(ValueError):
    """Error for an unsupported setting of a rotary embedding, which the message names."""


def write_rope(known: Architecture, config: ModelConfig) -> dict[str, Any]:
    """Return `rope_parameters` and, if transformers 4 supports it, `rope_theta` with `rope_scaling`."""
    full = _to_hf(config.rope)
    old = {"rope_theta": config.rope.theta, "rope_scaling": _scaling_to_hf(config.rope)}
    if not known.ropes_by_layer:
        return {"rope_parameters": full, **old}
    windowed = config.window_rope or config.rope
    parameters = {"full_attention": full, "sliding_attention": _to_hf(windowed)}
    # With the old keys, scaling applies to full attention only.
    has_old_words = windowed == RopeConfig(theta=config.rope.theta)
    return {"rope_parameters": parameters, **(old if has_old_words else {})}


def _to_hf(rope: RopeConfig) -> dict[str, Any]:
    return {"rope_theta": rope.theta, **(_scaling_to_hf(rope) or {"rope_type": "default"})}


def _scaling_to_hf(rope: RopeConfig) -> dict[str, Any] | None:
    match rope.scaling:
        case None:
            return None
        case LinearScaling() as linear:
            return {"rope_type": "linear", "factor": linear.factor}
        case Llama3Scaling() as llama:
            return {
                "rope_type": "llama3",
                "factor": llama.factor,
                "low_freq_factor": llama.low_freq_factor,
                "high_freq_factor": llama.high_freq_factor,
                "original_max_position_embeddings": llama.old_length,
            }
        case YarnScaling() as yarn:
            data: dict[str, Any] = {
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.old_length,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
            }
            if yarn.attention_factor is not None:
                data["attention_factor"] = yarn.attention_factor
            return data if yarn.truncate else {**data, "truncate": False}


def read_rope(known: Architecture, full: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig | None]:
    """Return the rotary embedding from a config.json, and the one for windowed layers if it differs.

    Raises:
        RopeProblem: one of them is not supported.
    """
    old, new = full.get("rope_scaling") or {}, full.get("rope_parameters") or {}
    if known.ropes_by_layer:
        return _read_layered(old, new, full)
    return _read_one(old or new, full), None  # transformers prefers the old key if both are set


def _read_layered(
    old: Mapping[str, Any], new: Mapping[str, Any], full: Mapping[str, Any]
) -> tuple[RopeConfig, RopeConfig | None]:
    """Read the embeddings of a model that has one for each layer type.

    `rope_scaling` applies only to full attention.
    """
    if new and "full_attention" not in new:
        raise RopeProblem("`rope_parameters` without `full_attention` is ignored by transformers for this model")
    if not new and full["rope_theta"] != _LAYERED_THETA:
        raise RopeProblem(
            f"`rope_theta: {full['rope_theta']}` without `rope_parameters` is read differently by transformers 4 and 5"
        )
    rope = _read_one({**(new.get("full_attention") or {}), **old}, full)
    windowed = _read_one(new.get("sliding_attention") or {}, {**full, "rope_theta": _LAYERED_THETA})
    if isinstance(rope.scaling, YarnScaling) and not rope.scaling.truncate:
        raise RopeProblem("`truncate: false` is ignored by transformers for this model")
    return rope, None if windowed == rope else windowed


def _read_one(parameters: Mapping[str, Any], full: Mapping[str, Any]) -> RopeConfig:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _READ_KEYS:
        raise RopeProblem(f"the rotary embedding `{kind}` is not supported by our decoder")
    unknown = sorted(set(parameters) - _READ_KEYS[kind] - _ALWAYS)
    if unknown:
        raise RopeProblem(f"the rotary embedding's `{unknown[0]}` is not supported by our decoder")
    if parameters.get("partial_rotary_factor") not in (None, 1):
        raise RopeProblem(
            f"`partial_rotary_factor: {parameters['partial_rotary_factor']}` is not supported by our decoder"
        )
    theta = parameters.get("rope_theta", full.get("rope_theta", 10_000.0))
    return RopeConfig(theta=float(theta), scaling=_read_scaling(kind, parameters, full))


def _read_scaling(
    kind: str, given: Mapping[str, Any], full: Mapping[str, Any]
) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=_number(kind, given, "factor"))
    old_length = given.get("original_max_position_embeddings") or full["max_position_embeddings"]
    if kind == "llama3":
        return Llama3Scaling(
            factor=_number(kind, given, "factor"),
            low_freq_factor=_number(kind, given, "low_freq_factor"),
            high_freq_factor=_number(kind, given, "high_freq_factor"),
            old_length=old_length,
        )
    return _read_yarn(given, old_length, full["max_position_embeddings"])


def _read_yarn(given: Mapping[str, Any], old_length: Any, max_length: int) -> YarnScaling:
    is_implied = given.get("factor", "") is None  # an explicit null: transformers uses the ratio of the lengths
    has_factor = given.get("attention_factor") is not None
    return YarnScaling(
        factor=max_length / float(old_length) if is_implied else _number("yarn", given, "factor"),
        old_length=old_length,
        beta_fast=_number("yarn", given, "beta_fast") if given.get("beta_fast") else 32.0,
        beta_slow=_number("yarn", given, "beta_slow") if given.get("beta_slow") else 1.0,
        attention_factor=_number("yarn", given, "attention_factor") if has_factor else None,
        truncate=bool(given.get("truncate", True)),
    )


def _number(kind: str, given: Mapping[str, Any], key: str) -> float:
    value = given.get(key)
    if value is None:
        raise RopeProblem(f"the rotary embedding `{kind}` has no `{key}`")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RopeProblem(f"`{key}: {value!r}` of the rotary embedding `{kind}` is not a number")
    return float(value)
