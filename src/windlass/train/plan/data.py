"""What a recipe's data amounts to, where it lies on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windlass.core.errors import SpecError, WindlassError
from windlass.train.data.config import DataConfig
from windlass.train.data.facts import DataFacts, describe
from windlass.train.model.config import ModelConfig
from windlass.train.recipe import Recipe

__all__ = ["DataEstimate", "data_of", "data_warnings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEstimate:
    """The mixture, counted or estimated; or why nothing is known of it.

    Attributes:
        note: why not, such as data that lies on another machine; empty where `facts` are there.
    """

    note: str = ""
    facts: DataFacts | None = None


def data_of(recipe: Recipe, vocab_size: int | None) -> DataEstimate:
    """Look at manifests and sizes of files; a plan can be made far from the data, so nothing that is missing raises."""
    if not isinstance(recipe.data, DataConfig):
        return DataEstimate(note=f"{recipe.data.target} gives it")
    if vocab_size is None:
        return DataEstimate(note="nothing says how many tokens the model knows")
    try:
        return DataEstimate(facts=describe(recipe.data, vocab_size=vocab_size))
    except SpecError as error:
        return DataEstimate(note="; ".join(problem.message for problem in error.problems))
    except (WindlassError, OSError) as error:
        return DataEstimate(note=str(error))


def data_warnings(recipe: Recipe, data: DataEstimate, vocab_size: int | None) -> Iterator[str]:
    """What a run would refuse, or find out late."""
    for source in () if data.facts is None else data.facts.sources:
        if source.max_id is not None and vocab_size is not None and source.max_id >= vocab_size:
            name = "model.vocab_size" if isinstance(recipe.model, ModelConfig) else "the model's vocabulary"
            yield f"{source.name} has token {source.max_id}, and {name} is {vocab_size}"
