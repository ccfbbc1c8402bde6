"""Decoders that take a millisecond."""

from __future__ import annotations

from typing import Any

import torch

from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

__all__ = ["attention", "config", "decoder", "tokens"]


def attention(**changes: Any) -> AttentionConfig:
    return AttentionConfig(**{"num_heads": 4, "num_kv_heads": 2, **changes})


def config(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {"d_model": 32, "num_layers": 2, "vocab_size": 61, "hidden": 48, "attention": attention()}
    # a wide spread, so that tokens matter to each other
    return ModelConfig(**{**sizes, "init_std": 0.2, **changes})


def decoder(**changes: Any) -> Decoder:
    """Random weights, norms too, so that a misplaced one shows."""
    model = Decoder(config(**changes))
    init_weights(model, 3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(rows: int = 2, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))
