"""Construction of a recipe's evaluation callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.train.callbacks.config import DownstreamConfig, LMEvalConfig
from windlass.train.data.config import DataConfig

if TYPE_CHECKING:
    from windlass.train.callbacks.build import Maker
    from windlass.train.callbacks.protocol import TrainerCallback
    from windlass.train.recipe import Recipe

__all__ = ["evaluation_makers"]


def evaluation_makers(recipe: Recipe, vocab_size: int | None) -> Mapping[str, Maker]:
    """Return builders for the `lm-eval` and `downstream` callbacks, which use the run's data settings and tokenizer."""

    def lm_eval(config: LMEvalConfig) -> TrainerCallback:
        from windlass.train.evaluate.lm_eval import lm_eval_callback  # lazy: runs without evaluation do not need it

        assert isinstance(recipe.data, DataConfig)  # `check_parts` rejects other configurations
        assert vocab_size is not None
        return lm_eval_callback(config, recipe.data, vocab_size=vocab_size)

    def downstream(config: DownstreamConfig) -> TrainerCallback:
        from windlass.train.data.tokenizer import load_tokenizer  # lazy: as above
        from windlass.train.evaluate.downstream import Downstream

        assert isinstance(recipe.data, DataConfig)
        return Downstream(
            config.tasks,
            load_tokenizer(recipe.data.tokenizer),
            every=config.every,
            num_fewshot=config.num_fewshot,
            limit=config.limit,
            include=config.include,
        )

    return {"lm-eval": lm_eval, "downstream": downstream}
