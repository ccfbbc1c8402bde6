"""Length of a run in steps and tokens, as far as the recipe and its data determine it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.data.facts import DataFacts
from windlass.train.duration import Duration
from windlass.train.recipe import Recipe

__all__ = ["Length", "run_length", "steps_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Length of training in steps and tokens.

    Attributes:
        steps: number of steps; None for a length in epochs if the data is not on this machine.
        tokens: number of tokens, padding included; None likewise.
        is_exact: whether the numbers are exact; otherwise the data is estimated.
        is_bound: whether they are upper bounds, because of a length in epochs of data that is not on this machine.
    """

    steps: int | None
    tokens: int | None
    is_exact: bool = True
    is_bound: bool = False


def steps_of(duration: Duration, recipe: Recipe, facts: DataFacts | None = None) -> int | None:
    """Return a duration in steps, rounded up, or None for epochs if nothing is known about the data."""
    if duration.unit == "steps":
        return duration.value
    if duration.unit == "tokens":
        return -(-duration.value // recipe.data.batch_tokens)
    rows = recipe.data.batch_tokens // recipe.data.sequence_length
    return None if facts is None else -(-duration.value * facts.rows_per_epoch // rows)


def run_length(recipe: Recipe, facts: DataFacts | None = None) -> Length:
    """Return the length of training with a recipe: its duration, or `stop` if that is earlier.

    Args:
        facts: facts about its data, if that is on this machine; used to convert epochs to steps.
    """
    ends = [end for end in (recipe.duration, recipe.stop) if end is not None]
    found = [(steps, end.unit) for end in ends if (steps := steps_of(end, recipe, facts)) is not None]
    if not found:
        return Length(steps=None, tokens=None)
    steps, unit = min(found)
    is_exact = unit != "epochs" or (facts is not None and facts.is_exact)
    tokens = steps * recipe.data.batch_tokens
    return Length(steps=steps, tokens=tokens, is_exact=is_exact, is_bound=len(found) < len(ends))
