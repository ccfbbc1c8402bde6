"""JSON Schema of a dataclass, for editors: completion, descriptions, errors while typing.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import inspect

from windlass.config.encode import plain
from windlass.config.numbers import DURATION_REGEX, SIZE_REGEX
from windlass.config.path import split_path
from windlass.config.shape import (
    Boolean,
    Choice,
    Field,
    Float,
    Free,
    Integer,
    ListOf,
    MapOf,
    Null,
    OneOf,
    Record,
    Shape,
    Text,
    fields_of,
    key_shorthands,
    short_shape,
)

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(schema: type[object]) -> dict[str, object]:
    """The JSON Schema of the files that `load` takes for a dataclass."""
    definitions: dict[str, object] = {}
    root = _of(Record(schema), definitions)
    return {"$schema": _DIALECT, "title": schema.__name__, **root, "$defs": definitions}


def _of(shape: Shape, definitions: dict[str, object]) -> dict[str, object]:
    match shape:
        case Record():
            return _record(shape, definitions)
        case OneOf():
            return {"anyOf": [_of(option, definitions) for option in shape.options]}
        case ListOf():
            items: dict[str, object] = {"type": "array", "items": _of(shape.item, definitions)}
            return {"anyOf": [_of(shape.item, definitions), items]} if shape.is_one_or_many else items
        case MapOf():
            names: dict[str, object] = (
                {"propertyNames": {"pattern": shape.key.rule.regex}} if shape.key.rule is not None else {}
            )
            return {"type": "object", "additionalProperties": _of(shape.item, definitions), **names}
        case _:
            return _scalar(shape)


def _scalar(shape: Shape) -> dict[str, object]:
    match shape:
        case Null():
            return {"type": "null"}
        case Boolean():
            return {"type": "boolean"}
        case Choice():
            return {"enum": list(shape.offered)}
        case Text():
            rule: dict[str, object] = {"pattern": f"^(?:{shape.rule.regex})$"} if shape.rule is not None else {}
            return {"type": ["string", "number", "boolean"] if shape.is_scalar else "string", **rule}
        case Integer(is_size=True):
            return {"type": "string", "pattern": SIZE_REGEX, "examples": ["16GiB"]}
        case Float(is_duration=True):
            return {"type": "string", "pattern": DURATION_REGEX, "examples": ["20m"]}
        case Integer() | Float():
            return {"type": "integer" if isinstance(shape, Integer) else "number", **_bounds(shape)}
    return {}


def _bounds(shape: Integer | Float) -> dict[str, object]:
    words = {"minimum": shape.range.min, "maximum": shape.range.max, "exclusiveMinimum": shape.range.above}
    return {word: value for word, value in words.items() if value is not None}


def _record(shape: Record, definitions: dict[str, object]) -> dict[str, object]:
    name = shape.cls.__name__
    if name not in definitions:
        # Set before the fields are read, so that a dataclass may hold itself.
        definitions[name] = {}
        definitions[name] = _definition(shape.cls, definitions)
    reference: dict[str, object] = {"$ref": f"#/$defs/{name}"}
    short = short_shape(shape.cls)
    return reference if short is None else {"anyOf": [_of(short, definitions), reference]}


def _definition(cls: type[object], definitions: dict[str, object]) -> dict[str, object]:
    fields = fields_of(cls)
    properties: dict[str, object] = {key: _property(field, definitions) for key, field in fields.items()}
    for key, target in key_shorthands(cls).items():
        found = _at(Record(cls), split_path(target))
        properties[key] = {**_of(found, definitions), "description": f"Short for `{target}`."}
    required = [key for key, field in fields.items() if field.is_required]
    return {
        "type": "object",
        "description": inspect.getdoc(cls) or "",
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _property(field: Field, definitions: dict[str, object]) -> dict[str, object]:
    found = _of(field.shape, definitions)
    if field.doc:
        found = {**found, "description": field.doc}
    default = None if field.is_required else plain(field.default(), field.shape)
    return {**found, "default": default} if isinstance(default, bool | int | float | str) else found


def _at(shape: Shape, parts: tuple[str, ...]) -> Shape:
    """The shape at a path."""
    for part in parts:
        if isinstance(shape, Record):
            shape = fields_of(shape.cls)[part].shape
        elif isinstance(shape, MapOf):
            shape = shape.item
        else:
            return Free()
    return shape
