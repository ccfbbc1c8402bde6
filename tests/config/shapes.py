"""A tree of dataclasses that has nothing to do with experiments: every kind of field `config` reads."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from windlass.config import Doc, Range
from windlass.config.annotations import (
    Diagnostic,
    DurationText,
    JsonValue,
    Key,
    Name,
    OneOrMany,
    Pattern,
    ScalarText,
    SizeText,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    kind: Literal["adam"] = "adam"
    beta: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    momentum: Annotated[float, Range(min=0, max=1)]
    kind: Literal["sgd", "plain"] = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: Annotated[int, Range(min=0)]
    y: int = 0

    @classmethod
    def from_shorthand(cls, value: int | str) -> Point:
        if isinstance(value, int):
            return cls(x=value)
        x, comma, y = value.partition(",")
        if not comma or not x.isdigit() or not y.isdigit():
            raise ValueError("a point is `3` or `3,4`")
        return cls(x=int(x), y=int(y))

    def to_shorthand(self) -> str | int | None:
        if self.x < 0 or self.y < 0:
            return None
        return f"{self.x},{self.y}" if self.y else self.x


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A dataclass that holds itself."""

    label: str = ""
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    low: int = 0
    high: int = 10

    def check(self) -> Iterator[Diagnostic]:
        if self.low > self.high:
            yield "low", "low is above high", "conflicting-options", "swap them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    KEY_SHORTHANDS: ClassVar[Mapping[str, str]] = {"origin": "points.origin"}

    text: Annotated[str, Doc("Any text.")] = "default"
    whole: int = 3
    small: Annotated[int, Range(min=1, max=9)] = 1
    real: float = 0.5
    ratio: Annotated[float, Range(above=0, max=1)] = 1.0
    flag: bool = False
    maybe: int | None = None
    maybe_text: str | None = None
    maybe_bounds: Bounds | None = None
    level: Literal["low", "high", 3, True] = "low"
    color: Color = Color.RED
    path: Path = Path()
    wait: Annotated[float, DurationText(), Range(min=0)] = 60.0
    maybe_wait: Annotated[float | None, DurationText()] = None
    memory: Annotated[int, SizeText(), Range(min=1)] = 1024
    name: Annotated[str, Name()] = "a-name"
    version: Annotated[str, Pattern(r"v[0-9]+", "a version is `v` and a number")] = "v1"
    class_: Annotated[str, Key("class")] = ""
    words: tuple[str, ...] = ()
    one_or_many: Annotated[tuple[str, ...], OneOrMany()] = ()
    grid: tuple[tuple[int, ...], ...] = ()
    listed: list[int] = field(default_factory=list)
    environment: Mapping[str, Annotated[str, ScalarText()]] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)
    path_of_points: Annotated[tuple[Point, ...], OneOrMany()] = ()
    number: int | float = 0
    command: str | tuple[str, ...] = ""
    optimizer: Adam | Sgd = Adam()
    bounds: Bounds = Bounds()
    tree: Node = Node()
    free: Mapping[str, JsonValue] = field(default_factory=dict)
