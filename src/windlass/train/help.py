"""Every field of a recipe: what it takes, what it is, what it is for. Read from the dataclasses; torch is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windlass.config import join_path, to_data
from windlass.config.encode import plain
from windlass.config.phrases import accepted
from windlass.config.shape import (
    Choice,
    Field,
    Float,
    Integer,
    ListOf,
    MapOf,
    Null,
    OneOf,
    Record,
    Shape,
    fields_of,
    short_shape,
    tag_of,
)
from windlass.train.recipe import Recipe
from windlass.train.targets.calling import OFFERS
from windlass.train.targets.config import TargetConfig
from windlass.train.targets.parts import targets_of
from windlass.train.targets.signature import read_signature

__all__ = ["FieldHelp", "field_help"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldHelp:
    """One field.

    Attributes:
        path: dotted; NAME and 0 stand for a name and a position of the user's choice.
        kinds: the kinds of the union around it that have it; empty where all do.
        takes: in words.
        value: of the recipe, else the default, as a file would say it; `required` without one.
        doc: what it is for.
    """

    path: str
    kinds: tuple[str, ...] = ()
    takes: str
    value: str
    doc: str


def field_help(recipe: Recipe | None = None) -> list[FieldHelp]:
    """All fields in the order of the dataclasses, those of every kind of a union included.

    Args:
        recipe: whose values are shown where it has that field; without one the defaults are.
    """
    data = None if recipe is None else to_data(recipe, keep_defaults=True)
    found = list(_of_record(Recipe if recipe is None else type(recipe), (), (), data))
    for where, part, config in () if recipe is None else targets_of(recipe):
        place = next((at for at, row in enumerate(found) if row.path == f"{where}.args"), len(found) - 1)
        found[place + 1 : place + 1] = _of_target(where, part, config)
    return found


def _of_target(where: str, part: str, config: TargetConfig) -> Iterator[FieldHelp]:
    """Arguments of code of the user's own."""
    for name, field in fields_of(read_signature(config.target, OFFERS[part]).schema).items():
        value = _shown(config.args[name]) if name in config.args else default_text(field)
        doc = field.doc or f"Of {config.target}."
        yield FieldHelp(
            path=f"{where}.args.{name}", kinds=("python",), takes=takes_text(field.shape), value=value, doc=doc
        )


def _of_record(
    cls: type[object], path: tuple[str, ...], kinds: tuple[str, ...], data: Mapping[str, object] | None
) -> Iterator[FieldHelp]:
    for key, field in fields_of(cls).items():
        inner = (*path, key)
        held = data.get(key) if data is not None else None
        deeper = list(_inside(field.shape, inner, kinds, held))
        if not deeper or _is_written_whole(field.shape):
            yield FieldHelp(
                path=join_path(inner),
                kinds=kinds,
                takes=takes_text(field.shape),
                value=_shown(held) if data is not None and key in data else default_text(field),
                doc=field.doc,
            )
        if not _is_measure(field.shape):
            yield from deeper


def _inside(shape: Shape, path: tuple[str, ...], kinds: tuple[str, ...], data: object) -> Iterator[FieldHelp]:
    """Fields of the mappings that a field holds."""
    match shape:
        case Record():
            yield from _of_record(shape.cls, path, kinds, data if isinstance(data, Mapping) else None)
        case OneOf():
            yield from _of_union([option for option in shape.options if isinstance(option, Record)], path, kinds, data)
            for option in shape.options:
                if not isinstance(option, Record):
                    yield from _inside(option, path, kinds, data)
        case MapOf():
            yield from _inside(shape.item, (*path, "NAME"), kinds, None)
        case ListOf():
            yield from _inside(shape.item, (*path, "0"), kinds, None)


def _of_union(
    options: list[Record], path: tuple[str, ...], kinds: tuple[str, ...], data: object
) -> Iterator[FieldHelp]:
    """Fields that several kinds share stand once, where the first of them has them."""
    if len(options) < 2:
        for option in options:
            yield from _inside(option, path, kinds, data)
        return
    held = data if isinstance(data, Mapping) else {}
    names = [str(kind) for option in options for kind in tag_of(option.cls)]
    yield FieldHelp(
        path=join_path((*path, "kind")),
        kinds=kinds,
        takes=", ".join(names),
        value=str(held.get("kind", "")),
        doc="Which of them it is; fields of the others go.",
    )
    rows: dict[tuple[str, str], list[FieldHelp]] = {}
    for option in options:
        is_present = held.get("kind") in tag_of(option.cls)
        own = tuple(str(kind) for kind in tag_of(option.cls))
        for row in _of_record(option.cls, path, own, held if is_present else None):
            if row.path != join_path((*path, "kind")):
                rows.setdefault((row.path, row.doc), []).append(row)
    for same in rows.values():
        shared = tuple(kind for row in same for kind in row.kinds)
        shown = next((row for row in same if held.get("kind") in row.kinds), same[0])
        yield FieldHelp(
            path=shown.path,
            kinds=kinds if len(shared) == len(names) else shared,
            takes=shown.takes,
            value=shown.value,
            doc=shown.doc,
        )


def _is_written_whole(shape: Shape) -> bool:
    """Whether a mapping may also be one word: null, a preset's name, a length of training."""
    options = shape.options if isinstance(shape, OneOf) else (shape,)
    return _is_measure(shape) or any(
        isinstance(option, Null) or (isinstance(option, Record) and short_shape(option.cls) is not None)
        for option in options
    )


def _is_measure(shape: Shape) -> bool:
    """Whether it is a length of training or a list of them, which everybody writes as one word."""
    if isinstance(shape, ListOf):
        return _is_measure(shape.item)
    options = shape.options if isinstance(shape, OneOf) else (shape,)
    return any(isinstance(option, Record) and list(fields_of(option.cls)) == ["value", "unit"] for option in options)


def takes_text(shape: Shape) -> str:
    """What a field takes, in words, with its bounds: `a whole number from 1`."""
    if _is_measure(shape):
        return f"{'a list, ' if isinstance(shape, ListOf) else ''}such as `100steps`, `5e9 tokens`"
    if isinstance(shape, OneOf):
        words = [takes_text(option) for option in shape.options if not isinstance(option, Null)]
        null = ["null"] if len(words) < len(shape.options) else []
        return " or ".join(dict.fromkeys([*words, *null]))
    if isinstance(shape, MapOf):
        return f"NAME: {takes_text(shape.item)}"
    if isinstance(shape, Choice):
        return ", ".join(str(value) for value in shape.offered)
    return accepted(shape) + (_bounds(shape) if isinstance(shape, Integer | Float) else "")


def _bounds(shape: Integer | Float) -> str:
    bounds = shape.range
    said = [
        f"from {bounds.min:g}" if bounds.min is not None else "",
        f"above {bounds.above:g}" if bounds.above is not None else "",
        f"to {bounds.max:g}" if bounds.max is not None else "",
    ]
    return "".join(f" {part}" for part in said if part)


def default_text(field: Field) -> str:
    """A field's default as a file would say it."""
    return "required" if field.is_required else _shown(plain(field.default(), field.shape, keep_defaults=True))


def _shown(data: object) -> str:
    """Plain data in one short word or two."""
    if isinstance(data, Mapping):
        if list(data) == ["value", "unit"]:
            return f"{data['value']} {data['unit']}"
        return ""
    if isinstance(data, list):
        return "[...]" if any(isinstance(item, Mapping) for item in data) else str(data).replace("'", "")
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    return str(data)
