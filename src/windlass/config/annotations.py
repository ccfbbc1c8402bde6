"""Annotations that say more about a field than its type: `Annotated[float, DurationText(), Doc("...")]`.

Markers without fields are plain classes: creating a dataclass costs half a millisecond at every start.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Annotated, TypeAlias

from windlass.core.dataclass import dataclass
from windlass.core.names import NAME_RULE, is_name

__all__ = [
    "Diagnostic",
    "Doc",
    "DurationText",
    "Free",
    "JsonValue",
    "Key",
    "Name",
    "OneOrMany",
    "Pattern",
    "Planned",
    "Range",
    "ScalarText",
    "SizeText",
]

_DOTLESS_RULE = NAME_RULE.replace(", '-', '_' and '.'", ", '-' and '_'")


@dataclass(frozen=True, slots=True)
class Doc:
    """Description of a field, which editors show with the help of the JSON Schema."""

    text: str


class DurationText:
    """Marker for a `float` in seconds that is written as text with a unit (`20m`)."""

    __slots__ = ()


class SizeText:
    """Marker for an `int` in bytes that is written as text with a unit (`16GiB`)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bounds of a number: `min` and `max` are inclusive, `above` is exclusive.

    Values with a unit are in seconds or bytes. A bounded number must be finite, unless `is_endless` allows infinity.
    """

    min: float | None = None
    max: float | None = None
    above: float | None = None
    is_endless: bool = False

    def holds(self, value: float) -> bool:
        """Return whether `value` is in the range; NaN never is."""
        return (
            (self.is_endless or abs(value) != inf)
            and (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and (self.above is None or value > self.above)
        )


@dataclass(frozen=True, slots=True)
class Pattern:
    """Rule that text must match `regex` completely; `rule` describes it in a sentence."""

    regex: str
    rule: str
    code: str = "invalid-value"

    def holds(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return re.fullmatch(self.regex, text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Rule that text must be valid as the name of an experiment, task or folder (see core.names)."""

    is_dotted: bool = True

    @property
    def rule(self) -> str:
        """Return the rule as a sentence."""
        return f"a name consists of {NAME_RULE if self.is_dotted else _DOTLESS_RULE}"

    @property
    def regex(self) -> str:
        """Return the rule as a regular expression, for JSON Schema."""
        dot = "." if self.is_dotted else ""
        return f"[a-z0-9](?:[a-z0-9{dot}_-]{{0,62}}[a-z0-9])?"

    @property
    def code(self) -> str:
        """Return the error code for an invalid name."""
        return "invalid-name"

    def holds(self, text: str) -> bool:
        """Return whether `text` is a valid name."""
        return is_name(text) and (self.is_dotted or "." not in text)


@dataclass(frozen=True, slots=True)
class Planned:
    """Values of a choice that are not supported yet: they are decoded, refused later, and never suggested."""

    values: tuple[str, ...]


class ScalarText:
    """Marker for text that may also be written as a bare number or boolean; it is kept exactly as written."""

    __slots__ = ()


class OneOrMany:
    """Marker for a tuple that may be written as a single item."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Key:
    """Name of a field's key in the file, if that is not a valid Python name (`from`, `as`)."""

    name: str


class Free:
    """Marker for any JSON-like value, which is kept unchanged; use `JsonValue`."""

    __slots__ = ()


if TYPE_CHECKING:
    JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
else:
    JsonValue = Annotated[object, Free()]

Diagnostic: TypeAlias = tuple[str, str, str, str]
"""Problem yielded by a dataclass's `check`: relative dotted path, message, slug, hint."""
