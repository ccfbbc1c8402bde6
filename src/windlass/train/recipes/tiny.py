"""A model that learns to spell in minutes on two cores, for tests, first steps and debugging."""

from __future__ import annotations

from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.duration import Duration
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.optim.config import AdamWConfig
from windlass.train.optim.schedule_config import CosineConfig
from windlass.train.recipe import Recipe

__all__ = ["tiny"]


def tiny() -> Recipe:
    """Return a recipe for a model of 1.3 million parameters on the bytes of `data.sources.0.path=FILE`.

    Six layers of width 128 with four heads see 128 bytes at once. The learning rate is high, which suits a model of
    this size; 500 steps of 4,096 bytes are two passes over one megabyte of text.
    """
    return Recipe(
        name="tiny",
        model=ModelConfig(
            d_model=128,
            num_layers=6,
            vocab_size=258,
            hidden=384,
            attention=AttentionConfig(num_heads=4),
            max_length=512,
            family="llama",
            is_tied=True,
        ),
        data=DataConfig(
            sources=(SourceConfig(path=("text.txt",)),),
            tokenizer=TokenizerConfig(path="bytes"),
            sequence_length=128,
            batch_tokens=4096,
        ),
        duration=Duration.steps(500),
        optim=AdamWConfig(lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=CosineConfig(warmup=Duration.steps(50), final=0.1),
        checkpoint=CheckpointerConfig(every=Duration.steps(250), keep=2),
    )
