"""Sizes of published models and of small ones for tests, as data.

Sources: `config.json` of the models' pages on the Hugging Face hub, named beside each row; for sizes marked OLMo-core,
`nn/transformer/config.py` of ai2-olmo-core 3.0.0. Vocabulary sizes are as published; set `vocab_size` for another tokenizer.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windlass.train.model.config import (
    AttentionConfig,
    Llama3Scaling,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    YarnScaling,
)

__all__ = ["PRESETS", "preset", "preset_names"]


def preset(name: str, **changes: Any) -> ModelConfig:
    """Return the configuration for a published (or test) size, with some fields changed.

    Args:
        name: name such as `olmo2-1b`; case is ignored, and `_` equals `-`.
        changes: fields of ModelConfig.

    Raises:
        ValueError: there is no such preset; the message has similar names.
    """
    key = name.lower().replace("_", "-")
    key = ALIASES.get(key, key)
    if key not in PRESETS:
        near = difflib.get_close_matches(key, preset_names(), n=3, cutoff=0.5)
        known = f"did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else f"such as {', '.join(EXAMPLES)}"
        raise ValueError(f"unknown preset `{name}`; {known}")
    return replace(PRESETS[key], **changes) if changes else PRESETS[key]


def preset_names() -> list[str]:
    """Return the names of all presets, including aliases."""
    return sorted([*PRESETS, *ALIASES])


def _llama(
    d_model: int, num_layers: int, num_heads: int, hidden: int, vocab_size: int, max_length: int, **more: Any
) -> ModelConfig:
    attention = AttentionConfig(num_heads=num_heads, num_kv_heads=more.pop("num_kv_heads", None))
    return ModelConfig(
        d_model=d_model,
        num_layers=num_layers,
        vocab_size=vocab_size,
        hidden=hidden,
        attention=attention,
        max_length=max_length,
        rope=RopeConfig(theta=more.pop("theta", 10_000.0), scaling=more.pop("scaling", None)),
        family="llama",
        **more,
    )


def _llama3(
    d_model: int, num_layers: int, num_heads: int, hidden: int, factor: float | None, **more: Any
) -> ModelConfig:
    scaling = Llama3Scaling(factor=factor) if factor is not None else None
    length = 8192 if scaling is None else 131_072
    return _llama(
        d_model,
        num_layers,
        num_heads,
        hidden,
        128_256,
        length,
        num_kv_heads=8,
        theta=500_000.0,
        scaling=scaling,
        **more,
    )


def _olmo2(d_model: int, num_layers: int, num_heads: int, hidden: int, **more: Any) -> ModelConfig:
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=more.pop("num_kv_heads", None),
        head_dim=more.pop("head_dim", None),
        qk_norm="full",
    )
    return ModelConfig(
        d_model=d_model,
        num_layers=num_layers,
        vocab_size=100_352,
        hidden=hidden,
        attention=attention,
        max_length=4096,
        norm="reordered",
        norm_eps=1e-6,
        rope=RopeConfig(theta=500_000.0),
        family="olmo2",
        **more,
    )


def _olmo3(base: ModelConfig, **changes: Any) -> ModelConfig:
    """Return the model as pre-trained: OLMo 2 with a window of 4096 in three of four layers, and 8192 tokens."""
    attention = replace(base.attention, window=4096, window_pattern=(True, True, True, False))
    return replace(base, attention=attention, vocab_size=100_278, max_length=8192, family="olmo3", **changes)


def _olmo3_long(base: ModelConfig) -> ModelConfig:
    """Return the model as released: layers without a window are scaled to 65,536 tokens."""
    plain = base.rope
    scaling = YarnScaling(factor=8.0, old_length=8192, attention_factor=1.2079441541679836)
    return replace(base, max_length=65_536, rope=replace(plain, scaling=scaling), window_rope=plain)


def _qwen3(
    d_model: int, num_layers: int, num_heads: int, hidden: int, *, is_tied: bool = False, **more: Any
) -> ModelConfig:
    attention = AttentionConfig(
        num_heads=num_heads, num_kv_heads=more.pop("num_kv_heads", 8), head_dim=128, qk_norm="head"
    )
    return ModelConfig(
        d_model=d_model,
        num_layers=num_layers,
        vocab_size=151_936,
        hidden=hidden,
        attention=attention,
        max_length=40_960,
        norm_eps=1e-6,
        rope=RopeConfig(theta=1_000_000.0),
        is_tied=is_tied,
        family="qwen3",
        **more,
    )


_OLMO2: Mapping[str, ModelConfig] = {
    # d_model, layers, heads, hidden; up to 3b: OLMo-core
    "olmo2-1m": _olmo2(12, 4, 4, 256, head_dim=4),
    "olmo2-14m": _olmo2(128, 4, 8, 512),
    "olmo2-30m": _olmo2(256, 4, 8, 768),
    "olmo2-60m": _olmo2(384, 8, 8, 1536),
    "olmo2-100m": _olmo2(512, 12, 8, 2048),
    "olmo2-190m": _olmo2(768, 12, 12, 3072),
    "olmo2-370m": _olmo2(1024, 16, 16, 4096),
    "olmo2-600m": _olmo2(1344, 16, 16, 5376),
    "olmo2-760m": _olmo2(1536, 16, 16, 6144),
    "olmo2-1b": _olmo2(2048, 16, 16, 8192),  # allenai/OLMo-2-0425-1B
    "olmo2-3b": _olmo2(3328, 16, 16, 13_312),
    "olmo2-7b": _olmo2(4096, 32, 32, 11_008),  # allenai/OLMo-2-1124-7B
    "olmo2-13b": _olmo2(5120, 40, 40, 13_824),  # allenai/OLMo-2-1124-13B
    "olmo2-32b": _olmo2(5120, 64, 40, 27_648, num_kv_heads=8),  # allenai/OLMo-2-0325-32B
}

_OLMO3: Mapping[str, ModelConfig] = {
    # OLMo-core, whose OLMo 3 sizes equal OLMo 2's, except 600m
    **{name.replace("olmo2", "olmo3"): _olmo3(base) for name, base in _OLMO2.items()},
    "olmo3-600m": _olmo3(replace(_OLMO2["olmo2-600m"], d_model=1280, hidden=5120)),
}

PRESETS: Mapping[str, ModelConfig] = {
    # for tests: seconds on a CPU
    "llama-1m": _llama(128, 2, 2, 512, 4096, 2048),
    "llama-4m": _llama(256, 4, 4, 768, 1024, 2048),
    "llama-30m": _llama(512, 8, 8, 1536, 4096, 2048),
    # OLMo-core: llama2_271M, llama2_1B (there is no such Llama 2)
    "llama2-271m": _llama(1024, 16, 8, 2816, 32_000, 4096),
    "llama2-1b": _llama(2048, 18, 16, 5632, 32_000, 4096),
    "llama2-7b": _llama(4096, 32, 32, 11_008, 32_000, 4096),  # meta-llama/Llama-2-7b-hf
    "llama2-13b": _llama(5120, 40, 40, 13_824, 32_000, 4096),  # meta-llama/Llama-2-13b-hf
    "llama2-70b": _llama(8192, 80, 64, 28_672, 32_000, 4096, num_kv_heads=8),  # meta-llama/Llama-2-70b-hf
    "llama3-8b": _llama3(4096, 32, 32, 14_336, None),  # meta-llama/Meta-Llama-3-8B
    "llama3-70b": _llama3(8192, 80, 64, 28_672, None),  # meta-llama/Meta-Llama-3-70B
    "llama3.1-8b": _llama3(4096, 32, 32, 14_336, 8.0),  # meta-llama/Llama-3.1-8B
    "llama3.1-70b": _llama3(8192, 80, 64, 28_672, 8.0),  # meta-llama/Llama-3.1-70B
    "llama3.2-1b": _llama3(2048, 16, 32, 8192, 32.0, is_tied=True),  # meta-llama/Llama-3.2-1B
    "llama3.2-3b": _llama3(3072, 28, 24, 8192, 32.0, is_tied=True),  # meta-llama/Llama-3.2-3B
    **_OLMO2,
    **_OLMO3,
    "olmo3-7b-64k": _olmo3_long(_OLMO3["olmo3-7b"]),  # allenai/Olmo-3-1025-7B
    "olmo3-32b-64k": _olmo3_long(_OLMO3["olmo3-32b"]),  # allenai/Olmo-3-1125-32B
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, is_tied=True),  # Qwen/Qwen3-0.6B
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, is_tied=True),  # Qwen/Qwen3-1.7B
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, is_tied=True),  # Qwen/Qwen3-4B
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288),  # Qwen/Qwen3-8B
    "qwen3-14b": _qwen3(5120, 40, 40, 17_408),  # Qwen/Qwen3-14B
    "qwen3-32b": _qwen3(5120, 64, 64, 25_600),  # Qwen/Qwen3-32B
    "qwen3-30b-a3b": _qwen3(  # Qwen/Qwen3-30B-A3B
        2048, 48, 32, 6144, num_kv_heads=4, moe=MoEConfig(num_experts=128, top_k=8, hidden=768, balance_loss=0.001)
    ),
    "moe-1m": _llama(128, 2, 4, 256, 4096, 2048, moe=MoEConfig(num_experts=8, top_k=2, hidden=128)),
    "moe-small": replace(  # OLMo-core: smallmoe
        _olmo2(768, 12, 12, 2048),
        moe=MoEConfig(num_experts=32, top_k=4, hidden=384, normalize=False, router_z_loss=0.001, shared_hidden=1536),
        family="custom",
    ),
    "olmoe-1b-7b": replace(  # allenai/OLMoE-1B-7B-0924
        _llama(2048, 16, 16, 1024, 50_304, 4096),
        attention=AttentionConfig(num_heads=16, qk_norm="full"),
        moe=MoEConfig(num_experts=64, top_k=8, hidden=1024, normalize=False, router_z_loss=0.001),
        family="custom",
    ),
}

ALIASES: Mapping[str, str] = {
    "llama-271m": "llama2-271m",
    "llama3-1b": "llama3.2-1b",
    "llama3-3b": "llama3.2-3b",
}

EXAMPLES = ("llama-1m", "llama2-271m", "olmo2-1b", "qwen3-0.6b")
