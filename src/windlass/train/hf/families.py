"""Architectures in transformers that our decoder supports, as data, without torch.

Source: configuration and model files of transformers 5.23, models/<model_type>.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from windlass.train.model.config import ModelConfig, YarnScaling

__all__ = ["FAMILIES", "Architecture", "architecture_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A `model_type` in transformers, and the settings that it implies.

    Attributes:
        model_type: its name in config.json.
        causal_lm: class of the whole model.
        family: `ModelConfig.family` after an import.
        windows: none, one for all layers, or set per layer.
        defaults: values that transformers uses for keys missing in config.json.
        ropes_by_layer: whether windowed layers may have a separate rotary embedding.
        expert_size: key of an expert's hidden size in config.json.
        expert_count: key of the number of experts.
        always_normalizes: whether the chosen experts' weights always sum to 1, without a setting.
    """

    model_type: str
    causal_lm: str
    family: Literal["llama", "olmo2", "olmo3", "qwen3", "custom"]
    norm: Literal["pre", "reordered"] = "pre"
    qk_norm: Literal["none", "full", "head"] = "none"
    bias: bool = False
    windows: Literal["none", "all", "layers"] = "none"
    is_moe: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    ropes_by_layer: bool = False
    expert_size: str = "moe_intermediate_size"
    expert_count: str = "num_experts"
    always_normalizes: bool = False

    def obstacles(self, config: ModelConfig) -> Iterator[str]:
        """Yield the settings of a model that this architecture does not support, as `setting value`."""
        attention = config.attention
        if config.norm != self.norm:
            yield f"norm {config.norm}"
        if attention.qk_norm != self.qk_norm:
            yield f"attention.qk_norm {attention.qk_norm}"
        if attention.bias != self.bias:
            yield f"attention.bias {str(attention.bias).lower()}"
        if not self._has_windows(config):
            yield f"attention.window {attention.window}"
        if attention.scale not in (None, config.head_dim**-0.5):
            yield f"attention.scale {attention.scale}"
        if attention.soft_cap is not None:
            yield f"attention.soft_cap {attention.soft_cap}"
        if config.logit_soft_cap is not None:
            yield f"logit_soft_cap {config.logit_soft_cap}"
        if config.embed_scale is not None:
            yield f"embed_scale {config.embed_scale}"
        yield from self._rope_obstacles(config)
        yield from self._expert_obstacles(config)

    def _rope_obstacles(self, config: ModelConfig) -> Iterator[str]:
        if config.rope.partial != 1:
            yield f"rope.partial {config.rope.partial}"
        if not all(config.rope_pattern):
            yield f"rope_pattern {list(config.rope_pattern)}"
        if config.window_rope is not None and not self.ropes_by_layer:
            yield "window_rope"
        scaling = config.rope.scaling
        if self.ropes_by_layer and isinstance(scaling, YarnScaling) and not scaling.truncate:
            yield "rope.scaling.truncate false"  # transformers 5.23 reads it only if all layers share one embedding

    def _has_windows(self, config: ModelConfig) -> bool:
        attention = config.attention
        if attention.window is None:
            # Without a window, mistral equals llama and olmo3 equals olmo2: they are written as such.
            return self.model_type not in ("mistral", "olmo3") or config.family == self.model_type
        is_everywhere = all(attention.window_pattern)
        return self.windows == "layers" or (self.windows == "all" and is_everywhere)

    def _expert_obstacles(self, config: ModelConfig) -> Iterator[str]:
        moe = config.moe
        if (moe is not None) != self.is_moe:
            yield "moe" if moe is not None else "moe null"
        elif moe is not None:
            if moe.gate != "softmax":
                yield f"moe.gate {moe.gate}"
            if moe.shared_hidden:
                yield f"moe.shared_hidden {moe.shared_hidden}"
            if self.always_normalizes and not moe.normalize:
                yield "moe.normalize false"


_QWEN = {
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
_OLMO = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}

FAMILIES: tuple[Architecture, ...] = (
    Architecture(
        model_type="llama",
        causal_lm="LlamaForCausalLM",
        family="llama",
        defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    ),
    Architecture(
        model_type="mistral",
        causal_lm="MistralForCausalLM",
        family="llama",
        windows="all",
        defaults={
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "num_key_value_heads": 8,
        },
    ),
    Architecture(
        model_type="qwen2",
        causal_lm="Qwen2ForCausalLM",
        family="llama",
        bias=True,
        windows="layers",
        defaults={**_QWEN, "num_key_value_heads": 32},
    ),
    Architecture(
        model_type="qwen3",
        causal_lm="Qwen3ForCausalLM",
        family="qwen3",
        qk_norm="head",
        windows="layers",
        defaults={**_QWEN, "num_key_value_heads": 32, "head_dim": 128},
    ),
    Architecture(
        model_type="olmo2",
        causal_lm="Olmo2ForCausalLM",
        family="olmo2",
        norm="reordered",
        qk_norm="full",
        defaults=_OLMO,
    ),
    Architecture(
        model_type="olmo3",
        causal_lm="Olmo3ForCausalLM",
        family="olmo3",
        norm="reordered",
        qk_norm="full",
        windows="layers",
        defaults={**_OLMO, "rope_theta": 500_000.0, "sliding_window": 4096},
        ropes_by_layer=True,
    ),
    Architecture(
        model_type="qwen3_moe",
        causal_lm="Qwen3MoeForCausalLM",
        family="qwen3",
        qk_norm="head",
        windows="all",
        is_moe=True,
        defaults={
            **_QWEN,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.001,
        },
    ),
    Architecture(
        model_type="olmoe",
        causal_lm="OlmoeForCausalLM",
        family="custom",
        qk_norm="full",
        is_moe=True,
        expert_size="intermediate_size",
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.01,
        },
    ),
    Architecture(
        model_type="flex_olmo",
        causal_lm="FlexOlmoForCausalLM",
        family="custom",
        norm="reordered",
        qk_norm="full",
        is_moe=True,
        expert_size="intermediate_size",
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "num_experts": 7,
            "num_experts_per_tok": 5,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.01,
            "rope_theta": 500_000.0,
        },
    ),
    Architecture(
        model_type="mixtral",
        causal_lm="MixtralForCausalLM",
        family="llama",
        windows="all",
        is_moe=True,
        expert_size="intermediate_size",
        expert_count="num_local_experts",
        always_normalizes=True,
        defaults={
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "router_aux_loss_coef": 0.001,
            "rope_theta": 1_000_000.0,
        },
    ),
)


def architecture_of(config: ModelConfig) -> Architecture | tuple[Architecture, tuple[str, ...]]:
    """Return the architecture that matches a model, or the nearest one with the obstacles if none matches.

    The model's family comes first, so that an OLMo 3 without windows stays one.
    """
    ordered = sorted(
        FAMILIES, key=lambda known: (known.is_moe != (config.moe is not None), known.model_type != config.family)
    )
    found = [(known, tuple(known.obstacles(config))) for known in ordered]
    possible = next((known for known, obstacles in found if not obstacles), None)
    if possible is not None:
        return possible
    of_its_kind = [pair for pair in found if pair[0].is_moe == (config.moe is not None)]
    return min(of_its_kind, key=lambda pair: len(pair[1]))
