"""Construction of a recipe's callbacks, and of those that every run has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass import report
from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.config import CallbackConfig, PythonConfig
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.targets.calling import call_target
from windlass.train.targets.config import TargetConfig

if TYPE_CHECKING:
    from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Maker", "build_callback", "build_callbacks", "load_callback", "mandatory_callbacks", "mandatory_kinds"]

Maker: TypeAlias = "Callable[[Any], TrainerCallback]"

HOMES = {
    "batch-size": ("schedules", "BatchSize"),
    "comet": ("trackers.comet", "Comet"),
    "console": ("console", "Console"),
    "garbage": ("garbage", "Garbage"),
    "gradients": ("gradients", "Gradients"),
    "jsonl": ("trackers.json_lines", "JsonLines"),
    "memory": ("memory", "Memory"),
    "profiler": ("profiler", "Profiler"),
    "report": ("report", "Report"),
    "sequence-length": ("schedules", "SequenceLength"),
    "speed": ("speed", "Speed"),
    "tensorboard": ("trackers.tensorboard", "TensorBoard"),
    "wandb": ("trackers.wandb", "Wandb"),
}
"""Kind to module and class; the class takes the fields of the settings as keywords."""


def mandatory_kinds() -> tuple[str, ...]:
    """Return the kinds of the callbacks that every trainer has, except the checkpointer."""
    return ("console", "garbage", "speed", *(("report",) if report.is_active() else ()))


def mandatory_callbacks() -> dict[str, TrainerCallback]:
    """Return the callbacks that every trainer has, with default settings, by name."""
    return {kind: _class_of(kind)() for kind in mandatory_kinds()}


def build_callbacks(
    configs: Mapping[str, CallbackConfig], makers: Mapping[str, Maker] | None = None
) -> dict[str, TrainerCallback | None]:
    """Build a recipe's callbacks and the mandatory ones, by name; None stands for a disabled callback.

    A mandatory callback is not added if the recipe has one of that kind, even a disabled one or one with another name.

    Args:
        makers: builders by kind, for kinds that need more than their settings (evaluations).

    Raises:
        SpecError: a kind is unknown, or a custom callback cannot be imported.
    """
    named = {config.kind for config in configs.values()}
    found: dict[str, TrainerCallback | None] = {}
    for kind in mandatory_kinds():
        found[kind] = None if kind in named else _class_of(kind)()
    for name, config in configs.items():
        found[name] = build_callback(name, config, makers or {}) if config.enabled else None
    return found


def build_callback(name: str, config: CallbackConfig, makers: Mapping[str, Maker]) -> TrainerCallback:
    """Build a callback from its settings."""
    if config.kind in makers:
        return makers[config.kind](config)
    if isinstance(config, PythonConfig):
        return load_callback(config, where=f"callbacks.{name}")
    if config.kind not in HOMES:
        message = f"callbacks.{name}: no builder for callbacks of kind {config.kind!r}"
        raise SpecError([Problem(message, "unknown-name", None, f"one of {', '.join(sorted(HOMES))}")])
    settings = {
        field.name: getattr(config, field.name) for field in fields(config) if field.name not in {"kind", "enabled"}
    }
    return _class_of(config.kind)(**settings)


def _class_of(kind: str) -> type[TrainerCallback]:
    module, name = HOMES[kind]
    found: type[TrainerCallback] = getattr(import_module(f"windlass.train.callbacks.{module}"), name)
    return found


def load_callback(config: TargetConfig, *, where: str = "callbacks") -> TrainerCallback:
    """Call `module:Class` or `file.py:Class` with its arguments.

    Args:
        where: path of the settings, for errors.

    Raises:
        SpecError: it cannot be imported or called, or does not return a TrainerCallback.
    """
    callback = call_target(config, "callback", where)
    if isinstance(callback, TrainerCallback):
        return callback
    message = f"{where}: {config.target} returned a {type(callback).__name__}, not a TrainerCallback"
    hint = "make it a subclass of windlass.train.TrainerCallback"
    raise SpecError([Problem(message, "recipe-wrong", None, hint)])
