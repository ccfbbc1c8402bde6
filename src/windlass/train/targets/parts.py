"""Custom parts of a recipe: how they are found, checked and hashed."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.core.errors import Problem, SourcePlace, WindlassError
from windlass.train.data.config import DataConfig, LoaderTarget, SourceTarget
from windlass.train.optim.config import OptimTarget
from windlass.train.optim.schedule_config import ScheduleTarget
from windlass.train.reference import load_reference
from windlass.train.targets.calling import check_target
from windlass.train.targets.config import ModelTarget, ModuleTarget, TargetConfig

if TYPE_CHECKING:
    from windlass.train.recipe import Recipe

__all__ = ["code_of", "complete", "targets_of"]

R = TypeVar("R", bound="Recipe")


def targets_of(recipe: Recipe) -> Iterator[tuple[str, str, TargetConfig]]:
    """Yield (path in the recipe, key in `OFFERS`, config) for each custom part."""
    if isinstance(recipe.model, ModelTarget):
        yield "model", "model", recipe.model
    if isinstance(recipe.train_module, ModuleTarget):
        yield "train_module", "train_module", recipe.train_module
    if isinstance(recipe.optim, OptimTarget):
        yield "optim", "optim", recipe.optim
    if isinstance(recipe.schedule, ScheduleTarget):
        yield "schedule", "schedule", recipe.schedule
    if isinstance(recipe.data, LoaderTarget):
        yield "data", "loader", recipe.data
    elif isinstance(recipe.data, DataConfig):
        for number, source in enumerate(recipe.data.sources):
            if isinstance(source, SourceTarget):
                yield f"data.sources.{number}", "source", source
    for name, config in recipe.callbacks.items():
        if isinstance(config, TargetConfig) and getattr(config, "enabled", True):
            yield f"callbacks.{name}", "callback", config


def complete(recipe: R, origins: Mapping[str, SourcePlace]) -> tuple[R, list[Problem], dict[str, SourcePlace]]:
    """Return the recipe with all arguments of its targets, the problems with them, and where each was written.

    Imports the recipe's custom code without calling it.
    """
    problems: list[Problem] = []
    places: dict[str, SourcePlace] = {}
    for where, part, config in targets_of(recipe):
        checked = check_target(config, part, where, origins)
        problems += checked.problems
        places |= checked.origins
        if not checked.problems:
            recipe = _put(recipe, where.split("."), replace(config, args=checked.args))
    return recipe, problems, places


def _put(value: Any, path: list[str], new: object) -> Any:
    """Return a copy of the value in which the entry at a path is replaced."""
    if not path:
        return new
    first, *rest = path
    if isinstance(value, tuple):
        return tuple(_put(item, rest, new) if str(at) == first else item for at, item in enumerate(value))
    if isinstance(value, Mapping):
        # a callback's name may contain dots
        key = next(name for name in value if ".".join(path) == name)
        return {**value, key: new}
    return replace(value, **{first: _put(getattr(value, first), rest, new)})


def code_of(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return the `target` of each custom part by path, and the `sha256` of its source file if there is one."""
    return {
        where: {"target": config.target, "sha256": digest_of(config.target)} for where, _, config in targets_of(recipe)
    }


def digest_of(target: str) -> str:
    """Return the digest of a target's source file, or an empty string if it cannot be read."""
    try:
        found: Any = load_reference(target)
        file = inspect.getsourcefile(inspect.unwrap(found) if callable(found) else found)
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (WindlassError, TypeError, OSError):
        return ""
