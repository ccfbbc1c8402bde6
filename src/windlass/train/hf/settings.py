"""Settings of a config.json: those that we read, those that change nothing, and those that we have no place for; no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.core.errors import Place, Problem

__all__ = ["REMEDY", "setting_problems"]

REMEDY = "use another model, or remove the setting from config.json if it changes nothing"

# Settings that we have no place for, and the values with which they change nothing.
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
# Settings that are no part of the function a model computes, or that are read below.
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
"""Far above any model: each layer is looked at before a weight is."""
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")


def setting_problems(data: Mapping[str, Any], source: str) -> Iterator[Problem]:
    """What keeps a config.json from being a model of ours, setting by setting."""
    for key in _REQUIRED:
        value = data.get(key)
        most = _MAX_LAYERS if key == "num_hidden_layers" else _MAX_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            yield Problem(f"`{key}` is {value!r}, not a count", "hf-setting", Place(source), "copy config.json again")
    for key, value in sorted(data.items()):
        neutral = _NEUTRAL.get(key)
        if neutral is not None:
            if value not in neutral:
                yield Problem(
                    f"`{key}: {json.dumps(value)}` has no place in our decoder", "hf-setting", Place(source), REMEDY
                )
        elif key not in _KNOWN and value is not None:
            yield Problem(
                f"nobody here knows what `{key}: {json.dumps(value)}` means", "hf-setting", Place(source), REMEDY
            )
