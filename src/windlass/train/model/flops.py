"""Number of parameters, memory and operations of a model, from its configuration; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.model.config import ModelConfig

__all__ = ["ParameterCounts", "count_parameters", "flops_per_token", "kv_bytes_per_token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of weights in the parts of a model.

    Attributes:
        total: all weights.
        active: weights used per token; fewer than `total` with experts.
        embedding: weights of the embedding and of an untied head (both are in `total` and `active`).
        frozen: weights beside an adapter, which are not trained.
    """

    total: int
    active: int
    embedding: int
    frozen: int = 0

    @property
    def trained(self) -> int:
        """Number of weights that are trained, and that checkpoints hold."""
        return self.total - self.frozen


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the weights of a Decoder with this configuration."""
    is_single = config.is_tied or config.head == "scalar"
    embedding = config.vocab_size * config.d_model * (1 if is_single else 2)
    score = config.d_model if config.head == "scalar" else 0
    shared = _block_without_experts(config) * config.num_layers + config.d_model + embedding + score
    moe = config.moe
    if moe is None:
        return ParameterCounts(total=shared, active=shared, embedding=embedding)
    expert = 3 * config.d_model * moe.hidden * config.num_layers
    return ParameterCounts(
        total=shared + moe.num_experts * expert, active=shared + moe.top_k * expert, embedding=embedding
    )


def flops_per_token(config: ModelConfig, length: int, *, adapter_weights: int = 0) -> float:
    """Return the forward and backward FLOPs per token in a row of `length` tokens.

    Six per weight of the token's matrix products (the embedding is a look-up, the head a product), and
    12 * heads * head size * visible tokens for each layer's attention, without a discount for causality, as in
    published figures of model FLOPs utilisation. A layer with a window sees at most the window. Beside an adapter the
    model's own weights get no gradient: four per weight.

    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    counts = count_parameters(config)
    head = config.vocab_size * config.d_model if config.head == "vocabulary" else 0
    matrices = counts.active - counts.embedding + head
    heads = config.attention.num_heads * config.head_dim
    seen = sum(min(length, config.window_of(layer) or length) for layer in range(config.num_layers))
    own = 4.0 * matrices + 6.0 * adapter_weights if adapter_weights else 6.0 * matrices
    return own + 12.0 * heads * seen


def kv_bytes_per_token(config: ModelConfig, bytes_per_value: int = 2) -> int:
    """Return the bytes that the cache needs per token, over all layers; layers with a window stop growing."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * bytes_per_value


def _block_without_experts(config: ModelConfig) -> int:
    own, size = config.attention, config.head_dim
    queries, groups = own.num_heads * size, config.num_kv_heads * size
    attention = config.d_model * (2 * queries + 2 * groups) + (queries + 2 * groups if own.bias else 0)
    normed = {"none": 0, "full": queries + groups, "head": 2 * size}[own.qk_norm]
    norms = config.d_model * (4 if config.norm == "peri" else 2)
    return attention + normed + norms + _feed_forward(config)


def _feed_forward(config: ModelConfig) -> int:
    """Count the weights of the dense layer, or of the router and the shared expert."""
    moe = config.moe
    if moe is None:
        return 3 * config.d_model * config.hidden
    return config.d_model * moe.num_experts + 3 * config.d_model * moe.shared_hidden
