"""Custom code in a recipe, as data; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from windlass.config.annotations import Doc, JsonValue

__all__ = ["ModelTarget", "ModuleTarget", "TargetConfig"]


# Without slots: recipe parts have a second base, and only one base may have slots.
@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Your own code: a function, a class or a dataclass, called with `args`."""

    kind: Annotated[Literal["python"], Doc("Always python.")] = "python"
    target: Annotated[str, Doc("`module:name` or `file.py:name`.")]
    args: Annotated[dict[str, JsonValue], Doc("Keyword arguments, checked against the signature.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget(TargetConfig):
    """Your own model: any `nn.Module` from tokens to logits, or to sums of losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTarget(TargetConfig):
    """Your own train module, which defines loss, step and saved state, and replaces the one for language models."""
