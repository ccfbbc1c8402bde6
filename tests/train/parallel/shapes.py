"""Tiny models of all kinds, as data."""

from __future__ import annotations

from dataclasses import replace

from windlass.train.model.config import AttentionConfig, ModelConfig, MoEConfig

__all__ = ["DEEP", "KINDS", "MOE", "TINY"]

TINY = ModelConfig(
    d_model=24,
    num_layers=2,
    vocab_size=92,
    hidden=40,
    attention=AttentionConfig(num_heads=4, num_kv_heads=2),
    max_length=64,
)
# No balance loss: it is a mean over a process's tokens, so it depends on how many processes there are.
MOE = replace(TINY, moe=MoEConfig(num_experts=4, top_k=2, hidden=20, balance_loss=0.0))
DEEP = replace(TINY, num_layers=4)
KINDS = {
    "pre": TINY,
    "olmo": replace(TINY, norm="reordered", attention=replace(TINY.attention, qk_norm="full")),
    "qwen": replace(TINY, is_tied=True, attention=replace(TINY.attention, qk_norm="head", bias=True)),
    "peri": replace(TINY, norm="peri", logit_soft_cap=5.0, attention=replace(TINY.attention, window=5)),
}
