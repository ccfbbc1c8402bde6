"""Help on every field of a recipe: accepted values, value and purpose, read from the dataclasses, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windlass.config.encode import plain, to_data
from windlass.config.field_types import (
    ChoiceType,
    Field,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    MapType,
    NullType,
    OneOfType,
    RecordType,
    fields_of,
    shorthand_type,
    tag_of,
)
from windlass.config.path import join_path
from windlass.config.phrases import accepted
from windlass.train.recipe import Recipe
from windlass.train.targets.calling import OFFERS
from windlass.train.targets.config import TargetConfig
from windlass.train.targets.parts import targets_of
from windlass.train.targets.signature import read_signature

__all__ = ["FieldHelp", "field_help"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldHelp:
    """Help on one field.

    Attributes:
        path: dotted; NAME and 0 stand for a name and a position of the user's choice.
        kinds: the kinds of the enclosing union that have the field; empty if all do.
        takes: description of the accepted values.
        value: the recipe's value, else the default, as written in a file; `required` without one.
        doc: purpose.
    """

    path: str
    kinds: tuple[str, ...] = ()
    takes: str
    value: str
    doc: str


def field_help(recipe: Recipe | None = None) -> list[FieldHelp]:
    """Return the help on all fields, in the order of the dataclasses, including every kind of a union.

    Args:
        recipe: recipe whose values are shown; if None, the defaults are shown.
    """
    data = None if recipe is None else to_data(recipe, keep_defaults=True)
    found = list(_of_record(Recipe if recipe is None else type(recipe), (), (), data))
    for where, part, config in () if recipe is None else targets_of(recipe):
        place = next((at for at, row in enumerate(found) if row.path == f"{where}.args"), len(found) - 1)
        found[place + 1 : place + 1] = _of_target(where, part, config)
    return found


def _of_target(where: str, part: str, config: TargetConfig) -> Iterator[FieldHelp]:
    """Yield the arguments that the user's own code takes."""
    for name, field in fields_of(read_signature(config.target, OFFERS[part]).schema).items():
        value = _shown(config.args[name]) if name in config.args else default_text(field)
        doc = field.doc or f"Of {config.target}."
        yield FieldHelp(
            path=f"{where}.args.{name}", kinds=("python",), takes=takes_text(field.type), value=value, doc=doc
        )


def _of_record(
    cls: type[object], path: tuple[str, ...], kinds: tuple[str, ...], data: Mapping[str, object] | None
) -> Iterator[FieldHelp]:
    for key, field in fields_of(cls).items():
        inner = (*path, key)
        held = data.get(key) if data is not None else None
        deeper = list(_inside(field.type, inner, kinds, held))
        if not deeper or _is_written_whole(field.type):
            yield FieldHelp(
                path=join_path(inner),
                kinds=kinds,
                takes=takes_text(field.type),
                value=_shown(held) if data is not None and key in data else default_text(field),
                doc=field.doc,
            )
        if not _is_measure(field.type):
            yield from deeper


def _inside(field_type: FieldType, path: tuple[str, ...], kinds: tuple[str, ...], data: object) -> Iterator[FieldHelp]:
    """Yield the fields inside a field's mappings."""
    match field_type:
        case RecordType():
            yield from _of_record(field_type.cls, path, kinds, data if isinstance(data, Mapping) else None)
        case OneOfType():
            yield from _of_union(
                [option for option in field_type.options if isinstance(option, RecordType)], path, kinds, data
            )
            for option in field_type.options:
                if not isinstance(option, RecordType):
                    yield from _inside(option, path, kinds, data)
        case MapType():
            yield from _inside(field_type.item, (*path, "NAME"), kinds, None)
        case ListType():
            yield from _inside(field_type.item, (*path, "0"), kinds, None)


def _of_union(
    options: list[RecordType], path: tuple[str, ...], kinds: tuple[str, ...], data: object
) -> Iterator[FieldHelp]:
    """Yield the fields of a union.

    A field that several kinds have appears once, with the first of them.
    """
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
        doc="Selects the kind; fields of the other kinds are dropped.",
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


def _is_written_whole(field_type: FieldType) -> bool:
    """Return whether a mapping may also be written as one word: null, a preset's name, a training length."""
    options = field_type.options if isinstance(field_type, OneOfType) else (field_type,)
    return _is_measure(field_type) or any(
        isinstance(option, NullType) or (isinstance(option, RecordType) and shorthand_type(option.cls) is not None)
        for option in options
    )


def _is_measure(field_type: FieldType) -> bool:
    """Return whether a type is a training length, or a list of them, usually written as one word."""
    if isinstance(field_type, ListType):
        return _is_measure(field_type.item)
    options = field_type.options if isinstance(field_type, OneOfType) else (field_type,)
    return any(
        isinstance(option, RecordType) and list(fields_of(option.cls)) == ["value", "unit"] for option in options
    )


def takes_text(field_type: FieldType) -> str:
    """Describe the values that a field takes, with bounds: `a whole number from 1`."""
    if _is_measure(field_type):
        return f"{'a list, ' if isinstance(field_type, ListType) else ''}such as `100steps`, `5e9 tokens`"
    if isinstance(field_type, OneOfType):
        words = [takes_text(option) for option in field_type.options if not isinstance(option, NullType)]
        null = ["null"] if len(words) < len(field_type.options) else []
        return " or ".join(dict.fromkeys([*words, *null]))
    if isinstance(field_type, MapType):
        return f"NAME: {takes_text(field_type.item)}"
    if isinstance(field_type, ChoiceType):
        return ", ".join(str(value) for value in field_type.offered)
    return accepted(field_type) + (_bounds(field_type) if isinstance(field_type, IntegerType | FloatType) else "")


def _bounds(field_type: IntegerType | FloatType) -> str:
    bounds = field_type.range
    said = [
        f"from {bounds.min:g}" if bounds.min is not None else "",
        f"above {bounds.above:g}" if bounds.above is not None else "",
        f"to {bounds.max:g}" if bounds.max is not None else "",
    ]
    return "".join(f" {part}" for part in said if part)


def default_text(field: Field) -> str:
    """Return the default of a field as it is written in a file."""
    return "required" if field.is_required else _shown(plain(field.default(), field.type, keep_defaults=True))


def _shown(data: object) -> str:
    """Return plain data as one or two short words."""
    if isinstance(data, Mapping):
        if list(data) == ["value", "unit"]:
            return f"{data['value']} {data['unit']}"
        return ""
    if isinstance(data, list):
        return "[...]" if any(isinstance(item, Mapping) for item in data) else str(data).replace("'", "")
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    return str(data)
