"""Parts of a recipe that a test knows to be windlass's own."""

from __future__ import annotations

from windlass.train.data.config import DataConfig, SourceConfig
from windlass.train.model.config import ModelConfig
from windlass.train.recipe import Recipe

__all__ = ["data_of", "decoder_of", "source_of"]


def decoder_of(recipe: Recipe) -> ModelConfig:
    """Settings of the decoder."""
    assert isinstance(recipe.model, ModelConfig)
    return recipe.model


def data_of(recipe: Recipe) -> DataConfig:
    """Settings of token data."""
    assert isinstance(recipe.data, DataConfig)
    return recipe.data


def source_of(recipe: Recipe, number: int = 0) -> SourceConfig:
    """A source of files."""
    source = data_of(recipe).sources[number]
    assert isinstance(source, SourceConfig)
    return source
