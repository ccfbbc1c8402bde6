"""From the `callbacks` of a recipe to objects, with the ones that every run has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from windlass import report
from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.config import CallbackConfig, PythonConfig

if TYPE_CHECKING:
    from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Maker", "build_callback", "build_callbacks", "mandatory_callbacks", "mandatory_kinds"]

Maker: TypeAlias = "Callable[[Any], TrainerCallback]"

HOMES = {
    "batch-size": ("batch_size", "BatchSize"),
    "comet": ("trackers.comet", "Comet"),
    "console": ("console", "Console"),
    "garbage": ("garbage", "Garbage"),
    "gradients": ("gradients", "Gradients"),
    "jsonl": ("trackers.json_lines", "JsonLines"),
    "memory": ("memory", "Memory"),
    "profiler": ("profiler", "Profiler"),
    "report": ("report", "Report"),
    "sequence-length": ("sequence_length", "SequenceLength"),
    "speed": ("speed", "Speed"),
    "tensorboard": ("trackers.tensorboard", "TensorBoard"),
    "wandb": ("trackers.wandb", "Wandb"),
}
"""Kind to module and class; the class takes the fields of the settings as keywords."""


def mandatory_kinds() -> tuple[str, ...]:
    """What hangs on every trainer: beside these the checkpointer, which is the trainer's own."""
    return ("console", "garbage", "speed", *(("report",) if report.is_active() else ()))


def mandatory_callbacks() -> dict[str, TrainerCallback]:
    """The callbacks that every trainer has, as they are without settings, by name."""
    return {kind: _class_of(kind)() for kind in mandatory_kinds()}


def build_callbacks(
    configs: Mapping[str, CallbackConfig], makers: Mapping[str, Maker] | None = None
) -> dict[str, TrainerCallback | None]:
    """Callbacks of a recipe by name, the mandatory ones added; None stands for one that is left out.

    A mandatory callback is not added beside one of the same kind, whatever its name and whether it is enabled or not.

    Args:
        makers: kind to what makes a callback of its settings, for kinds that need more than those (evaluations).

    Raises:
        SpecError: a kind is unknown here, or a callback of the user's own cannot be imported.
    """
    named = {config.kind for config in configs.values()}
    found: dict[str, TrainerCallback | None] = {}
    for kind in mandatory_kinds():
        found[kind] = None if kind in named else _class_of(kind)()
    for name, config in configs.items():
        found[name] = build_callback(name, config, makers or {}) if config.enabled else None
    return found


def build_callback(name: str, config: CallbackConfig, makers: Mapping[str, Maker]) -> TrainerCallback:
    """One callback from its settings."""
    if config.kind in makers:
        return makers[config.kind](config)
    if isinstance(config, PythonConfig):
        from windlass.train.callbacks.python import load_callback  # lazy: few runs have one

        return load_callback(config, where=f"callbacks.{name}")
    if config.kind not in HOMES:
        message = f"callbacks.{name}: nothing here makes a callback of kind {config.kind!r}"
        raise SpecError([Problem(message, "unknown-name", None, f"one of {', '.join(sorted(HOMES))}")])
    settings = {
        field.name: getattr(config, field.name) for field in fields(config) if field.name not in {"kind", "enabled"}
    }
    return _class_of(config.kind)(**settings)


def _class_of(kind: str) -> type[TrainerCallback]:
    module, name = HOMES[kind]
    found: type[TrainerCallback] = getattr(import_module(f"windlass.train.callbacks.{module}"), name)
    return found
