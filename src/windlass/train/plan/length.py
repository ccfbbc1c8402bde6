"""Length of a run in steps and tokens, as far as the recipe and its data determine it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.data.facts import DataFacts
from windlass.train.duration import Duration
from windlass.train.recipe import Recipe

__all__ = ["Length", "run_length", "steps_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """A length of training.

    Attributes:
        steps: None where it is given in epochs and the data is not here.
        tokens: padding counted; None likewise.
        is_exact: whether these are counts; else the data is estimated.
        is_bound: whether the run may end earlier, by a number of epochs of data that is not here.
    """

    steps: int | None
    tokens: int | None
    is_exact: bool = True
    is_bound: bool = False


def steps_of(duration: Duration, recipe: Recipe, facts: DataFacts | None = None) -> int | None:
    """Optimiser steps of a duration, the last one begun counted; None for epochs without facts about the data."""
    if duration.unit == "steps":
        return duration.value
    if duration.unit == "tokens":
        return -(-duration.value // recipe.data.batch_tokens)
    rows = recipe.data.batch_tokens // recipe.data.sequence_length
    return None if facts is None else -(-duration.value * facts.rows_per_epoch // rows)


def run_length(recipe: Recipe, facts: DataFacts | None = None) -> Length:
    """Return the length that this recipe will train: its duration, or what `stop` leaves of it.

    Args:
        facts: of its data, where that is on this machine; they turn epochs into steps.
    """
    ends = [end for end in (recipe.duration, recipe.stop) if end is not None]
    found = [(steps, end.unit) for end in ends if (steps := steps_of(end, recipe, facts)) is not None]
    if not found:
        return Length(steps=None, tokens=None)
    steps, unit = min(found)
    is_exact = unit != "epochs" or (facts is not None and facts.is_exact)
    tokens = steps * recipe.data.batch_tokens
    return Length(steps=steps, tokens=tokens, is_exact=is_exact, is_bound=len(found) < len(ends))
