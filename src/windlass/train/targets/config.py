"""A part of a recipe made by code of your own, as data; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from windlass.config import Doc, JsonValue

__all__ = ["ModelTarget", "ModuleTarget", "TargetConfig"]


# Without slots: parts of a recipe have a second base, and of two bases only one may have them.
@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Something of your own: a function, a class or a dataclass, called with `args`."""

    kind: Annotated[Literal["python"], Doc("Always python.")] = "python"
    target: Annotated[str, Doc("`module:name` or `file.py:name`.")]
    args: Annotated[dict[str, JsonValue], Doc("Its keyword arguments, checked against its signature.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget(TargetConfig):
    """A model of your own: any `nn.Module` from tokens to logits, or to sums of losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTarget(TargetConfig):
    """A train module of your own: the loss, the step, what is saved. Replaces the one for language models."""
