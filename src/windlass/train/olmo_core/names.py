"""What OLMo-core calls the weights of a decoder; no torch."""

from __future__ import annotations

from windlass.train.hf.maps import NameMap, WeightRule

__all__ = ["OLMO_CORE"]

_FFN = {"gate": "w1", "up": "w3", "down": "w2"}

OLMO_CORE = NameMap(
    (
        WeightRule("embed.weight", "embeddings.weight"),
        WeightRule("norm.weight", "lm_head.norm.weight"),
        WeightRule("head.weight", "lm_head.w_out.weight"),
        *(WeightRule(f"blocks.{{i}}.attention.{x}.weight", f"blocks.{{i}}.attention.w_{x}.weight") for x in "qkv"),
        WeightRule("blocks.{i}.attention.o.weight", "blocks.{i}.attention.w_out.weight"),
        *(
            WeightRule(f"blocks.{{i}}.attention.{x}_norm.weight", f"blocks.{{i}}.attention.{x}_norm.weight")
            for x in ("q", "k")
        ),
        *(
            WeightRule(f"blocks.{{i}}.ffn.{ours}.weight", f"blocks.{{i}}.feed_forward.{theirs}.weight")
            for ours, theirs in _FFN.items()
        ),
        WeightRule("blocks.{i}.attention_norm.weight", "blocks.{i}.attention_norm.weight"),
        WeightRule("blocks.{i}.ffn_norm.weight", "blocks.{i}.feed_forward_norm.weight"),
        WeightRule("blocks.{i}.attention_post_norm.weight", "blocks.{i}.post_attention_norm.weight"),
        WeightRule("blocks.{i}.ffn_post_norm.weight", "blocks.{i}.post_feed_forward_norm.weight"),
    )
)
