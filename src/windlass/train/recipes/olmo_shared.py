"""Settings that the recipes for all stages of OLMo 2 and OLMo 3 have in common."""

from __future__ import annotations

from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.optim.config import AdamWConfig, GroupConfig, SkipConfig

__all__ = ["SEED", "VOCABULARY", "adamw", "token_data"]

VOCABULARY = 100_352
"""Vocabulary of the dolma2 tokenizer, 100,278, padded to a multiple of 128."""

SEED = 12_536
"""OLMo-core's default seed, for scripts that set none."""


def adamw(*, lr: float, weight_decay: float = 0.1) -> AdamWConfig:
    """Return AdamW settings without weight decay on embeddings, which skip outlier steps."""
    return AdamWConfig(
        lr=lr,
        weight_decay=weight_decay,
        betas=(0.9, 0.95),
        groups=(GroupConfig(match=("embed.*",), weight_decay=0.0),),
        max_grad_norm=1.0,
        skip=SkipConfig(window=128, sigmas=6.0),
    )


def token_data(*, sequence_length: int, rows: int, rows_at_once: int, seed: int = 34_521) -> DataConfig:
    """Return data settings for rows of a fixed length, read from dolma2 token files."""
    return DataConfig(
        sources=(SourceConfig(path=("tokens/*.npy",)),),
        tokenizer=TokenizerConfig(path="allenai/dolma2-tokenizer", eos_id=100_257, pad_id=100_277),
        sequence_length=sequence_length,
        batch_tokens=rows * sequence_length,
        microbatch_tokens=rows_at_once * sequence_length,
        seed=seed,
    )
