"""What OLMo-core calls the weights of a decoder; no torch."""

from __future__ import annotations

from windlass.train.hf.maps import NameMap, Rule

__all__ = ["OLMO_CORE"]

_FFN = {"gate": "w1", "up": "w3", "down": "w2"}

OLMO_CORE = NameMap(
    (
        Rule("embed.weight", "embeddings.weight"),
        Rule("norm.weight", "lm_head.norm.weight"),
        Rule("head.weight", "lm_head.w_out.weight"),
        *(Rule(f"blocks.{{i}}.attention.{x}.weight", f"blocks.{{i}}.attention.w_{x}.weight") for x in "qkv"),
        Rule("blocks.{i}.attention.o.weight", "blocks.{i}.attention.w_out.weight"),
        *(
            Rule(f"blocks.{{i}}.attention.{x}_norm.weight", f"blocks.{{i}}.attention.{x}_norm.weight")
            for x in ("q", "k")
        ),
        *(
            Rule(f"blocks.{{i}}.ffn.{ours}.weight", f"blocks.{{i}}.feed_forward.{theirs}.weight")
            for ours, theirs in _FFN.items()
        ),
        Rule("blocks.{i}.attention_norm.weight", "blocks.{i}.attention_norm.weight"),
        Rule("blocks.{i}.ffn_norm.weight", "blocks.{i}.feed_forward_norm.weight"),
        Rule("blocks.{i}.attention_post_norm.weight", "blocks.{i}.post_attention_norm.weight"),
        Rule("blocks.{i}.ffn_post_norm.weight", "blocks.{i}.post_feed_forward_norm.weight"),
    )
)
