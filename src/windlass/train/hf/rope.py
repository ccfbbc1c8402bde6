"""Rotary embeddings to and from config.json, in the keys of transformers 5 and of 4.

OLMo 3 has one per type of layer; in the words of transformers 4, that of windowed layers is the same but never scaled.
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
_ALWAYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


class RopeProblem(ValueError):
    """Something of a rotary embedding that ours does not have; the message names it."""


def write_rope(known: Architecture, config: ModelConfig) -> dict[str, Any]:
    """`rope_parameters`, and where transformers 4 had words for it `rope_theta` with `rope_scaling`."""
    full = _to_hf(config.rope)
    old = {"rope_theta": config.rope.theta, "rope_scaling": _scaling_to_hf(config.rope)}
    if not known.ropes_by_layer:
        return {"rope_parameters": full, **old}
    windowed = config.window_rope or config.rope
    parameters = {"full_attention": full, "sliding_attention": _to_hf(windowed)}
    # Under the old names, scaling is that of full attention alone.
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
            data = {
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.old_length,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
            }
            return data if yarn.attention_factor is None else {**data, "attention_factor": yarn.attention_factor}


def read_rope(known: Architecture, full: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig | None]:
    """The rotary embedding of a config.json, and that of windowed layers where it is another.

    Raises:
        RopeProblem: one of them is none of ours.
    """
    parameters = full.get("rope_parameters") or full.get("rope_scaling") or {}
    if not known.ropes_by_layer:
        return _read_one(parameters, full), None
    if "full_attention" in parameters:
        rope = _read_one(parameters["full_attention"], full)
        windowed = _read_one(parameters.get("sliding_attention") or {}, full)
    else:
        rope = _read_one(parameters, full)
        windowed = RopeConfig(theta=rope.theta)
    return rope, None if windowed == rope else windowed


def _read_one(parameters: Mapping[str, Any], full: Mapping[str, Any]) -> RopeConfig:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _READ_KEYS:
        raise RopeProblem(f"the rotary embedding `{kind}` has no place in our decoder")
    unknown = sorted(set(parameters) - _READ_KEYS[kind] - _ALWAYS)
    if unknown:
        raise RopeProblem(f"the rotary embedding's `{unknown[0]}` has no place in our decoder")
    if parameters.get("partial_rotary_factor") not in (None, 1):
        raise RopeProblem(f"`partial_rotary_factor: {parameters['partial_rotary_factor']}` has no place in our decoder")
    if parameters.get("truncate", True) is not True:
        raise RopeProblem("`truncate: false` of the rotary embedding has no place in our decoder")
    theta = parameters.get("rope_theta", full.get("rope_theta", 10_000.0))
    return RopeConfig(theta=float(theta), scaling=_read_scaling(kind, parameters, full))


def _read_scaling(
    kind: str, given: Mapping[str, Any], full: Mapping[str, Any]
) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    if kind == "default":
        return None
    if "factor" not in given:
        raise RopeProblem(f"the rotary embedding `{kind}` has no `factor`")
    factor = float(given["factor"])
    if kind == "linear":
        return LinearScaling(factor=factor)
    old_length = given.get("original_max_position_embeddings") or full["max_position_embeddings"]
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_freq_factor=float(given["low_freq_factor"]),
            high_freq_factor=float(given["high_freq_factor"]),
            old_length=old_length,
        )
    attention_factor = given.get("attention_factor")
    return YarnScaling(
        factor=factor,
        old_length=old_length,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        attention_factor=None if attention_factor is None else float(attention_factor),
    )
