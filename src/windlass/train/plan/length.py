"""How long a run is: steps and tokens, as far as the recipe alone says it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.duration import Duration
from windlass.train.recipe import Recipe

__all__ = ["Length", "run_length", "steps_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """A length of training.

    Attributes:
        steps: None where it is given in epochs, since only the data knows.
        tokens: padding counted; None likewise.
    """

    steps: int | None
    tokens: int | None


def steps_of(duration: Duration, recipe: Recipe) -> int | None:
    """Optimiser steps of a duration, the last one begun counted; None for epochs."""
    if duration.unit == "steps":
        return duration.value
    return -(-duration.value // recipe.data.batch_tokens) if duration.unit == "tokens" else None


def run_length(recipe: Recipe) -> Length:
    """What this recipe will train: its duration, or what `stop` leaves of it."""
    found = [steps_of(duration, recipe) for duration in (recipe.duration, recipe.stop) if duration is not None]
    known = [steps for steps in found if steps is not None]
    # Without a number for the duration itself a stop is an upper bound, and the only one there is.
    steps = min(known, default=None)
    return Length(steps=steps, tokens=None if steps is None else steps * recipe.data.batch_tokens)
