"""Custom schedule, made into a function that the trainer calls."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from windlass.core.errors import Problem, SpecError
from windlass.train.optim.schedules import Rates, Unit, convert
from windlass.train.reference import load_reference
from windlass.train.targets.calling import OFFERS, whole_target

if TYPE_CHECKING:
    from windlass.train.optim.schedule_config import ScheduleTarget
    from windlass.train.recipe import Recipe

__all__ = ["own_schedule"]


def own_schedule(recipe: Recipe, config: ScheduleTarget, rates: Rates) -> Callable[[int, int], float]:
    """Return a function from step and tokens to a fraction of the peak learning rate.

    A function is called for every step; a class is instantiated once, and the object is called for every step. Each gets
    those of `step`, `tokens`, `progress`, `duration` and `recipe` that it has as parameters.

    Raises:
        SpecError: it fails at the first step, or does not return a number.
    """
    offered = {"duration": recipe.duration, "recipe": recipe}
    call = whole_target(config, "schedule", "schedule")
    if isinstance(load_reference(config.target), type):
        call = _named_alone(call(**offered), config)

    def factor(step: int, tokens: int) -> float:
        progress = _progress(recipe, rates, step, tokens)
        found = call(step=step, tokens=tokens, progress=progress, **offered)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found) or found < 0:
            message = f"schedule: {config.target} returned {found!r} at step {step}, not a share of the peak"
            raise SpecError([Problem(message, "invalid-value", hint="return a non-negative number; 1 is the peak")])
        return float(found)

    factor(1, rates.batch_tokens or 0)
    return factor


def _named_alone(made: object, config: ScheduleTarget) -> Callable[..., object]:
    if not callable(made):
        message = f"schedule: {config.target} returned a {type(made).__name__}, which cannot be called"
        raise SpecError([Problem(message, "recipe-wrong", hint="add `__call__(self, step)` to the class")])
    names = [name for name in inspect.signature(made).parameters if name in OFFERS["schedule"]]

    def call(**offered: object) -> object:
        return made(**{name: offered[name] for name in names})

    return call


def _progress(recipe: Recipe, rates: Rates, step: int, tokens: int) -> float:
    """Return the completed fraction of the run, including this step."""
    unit: Unit = "tokens" if recipe.duration.unit == "tokens" else "steps"
    total = convert(recipe.duration, unit, rates)
    return min(1.0, (tokens if unit == "tokens" else step) / total) if total else 1.0
