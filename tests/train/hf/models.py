"""Tiny models of every architecture that we write, and of some that transformers lacks."""

from __future__ import annotations

from windlass.train.model.config import (
    AttentionConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    YarnScaling,
)

__all__ = ["MODELS"]

_GROUPED = AttentionConfig(num_heads=4, num_kv_heads=2)
_QWEN = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=12, qk_norm="head")
_OLMO = AttentionConfig(num_heads=4, qk_norm="full")
_OLMO3 = AttentionConfig(
    num_heads=4, num_kv_heads=2, qk_norm="full", window=5, window_pattern=(True, True, True, False)
)
_EXPERTS = MoEConfig(num_experts=4, top_k=2, hidden=16)
_THETA = RopeConfig(theta=500_000.0)
_YARN = RopeConfig(theta=500_000.0, scaling=YarnScaling(factor=8, old_length=32, attention_factor=1.2))
# A ramp that ends beyond half of the channels, at places between them.
_FAR_YARN = RopeConfig(theta=100.0, scaling=YarnScaling(factor=8, old_length=2048, truncate=False))


def _model(attention: AttentionConfig, **changes: object) -> ModelConfig:
    sizes = {"d_model": 32, "num_layers": 2, "vocab_size": 97, "hidden": 48, "max_length": 64}
    return ModelConfig(attention=attention, **{**sizes, **changes})  # type: ignore[arg-type]


MODELS: dict[str, ModelConfig] = {
    "llama": _model(_GROUPED, family="llama"),
    "llama-tied": _model(_GROUPED, family="llama", is_tied=True),
    "llama-3.1": _model(_GROUPED, family="llama", rope=RopeConfig(theta=5e5, scaling=Llama3Scaling(old_length=32))),
    "llama-linear": _model(_GROUPED, family="llama", rope=RopeConfig(scaling=LinearScaling(factor=4))),
    "llama-yarn": _model(_GROUPED, family="llama", rope=_YARN),
    "llama-yarn-far": _model(_GROUPED, family="llama", rope=_FAR_YARN),
    "mistral": _model(AttentionConfig(num_heads=4, num_kv_heads=2, window=6), family="llama"),
    "qwen2": _model(AttentionConfig(num_heads=4, num_kv_heads=2, bias=True), family="llama", is_tied=True),
    "qwen3": _model(_QWEN, family="qwen3", norm_eps=1e-6, rope=RopeConfig(theta=1e6)),
    "qwen3-tied": _model(_QWEN, family="qwen3", is_tied=True),
    "qwen3-windows": _model(
        AttentionConfig(num_heads=4, num_kv_heads=2, qk_norm="head", window=6, window_pattern=(False, True)),
        family="qwen3",
    ),
    "olmo2": _model(_OLMO, family="olmo2", norm="reordered", norm_eps=1e-6, rope=_THETA),
    "olmo3": _model(_OLMO3, family="olmo3", norm="reordered", norm_eps=1e-6, rope=_THETA, num_layers=4),
    "olmo3-long": _model(
        _OLMO3, family="olmo3", norm="reordered", rope=_YARN, window_rope=_THETA, num_layers=4, max_length=256
    ),
    "qwen3-moe": _model(_QWEN, family="qwen3", moe=_EXPERTS),
    "mixtral": _model(_GROUPED, hidden=16, family="llama", moe=_EXPERTS),
    "flex-olmo": _model(
        _OLMO, hidden=16, norm="reordered", moe=MoEConfig(num_experts=4, top_k=2, hidden=16, normalize=False)
    ),
    "olmoe": _model(
        _OLMO, hidden=16, moe=MoEConfig(num_experts=4, top_k=2, hidden=16, normalize=False), family="custom"
    ),
}
