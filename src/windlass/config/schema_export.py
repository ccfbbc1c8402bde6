"""JSON Schema for a dataclass, used by editors.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import inspect

from windlass.config.encode import plain
from windlass.config.field_types import (
    BooleanType,
    ChoiceType,
    Field,
    FieldType,
    FloatType,
    Free,
    IntegerType,
    ListType,
    MapType,
    NullType,
    OneOfType,
    RecordType,
    TextType,
    fields_of,
    key_shorthands,
    shorthand_type,
)
from windlass.config.numbers import DURATION_REGEX, SIZE_REGEX
from windlass.config.path import split_path

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(schema: type[object]) -> dict[str, object]:
    """Return the JSON Schema for the files that `load` accepts for a dataclass."""
    definitions: dict[str, object] = {}
    root = _of(RecordType(schema), definitions)
    return {"$schema": _DIALECT, "title": schema.__name__, **root, "$defs": definitions}


def _of(field_type: FieldType, definitions: dict[str, object]) -> dict[str, object]:
    match field_type:
        case RecordType():
            return _record(field_type, definitions)
        case OneOfType():
            return {"anyOf": [_of(option, definitions) for option in field_type.options]}
        case ListType():
            items: dict[str, object] = {"type": "array", "items": _of(field_type.item, definitions)}
            return {"anyOf": [_of(field_type.item, definitions), items]} if field_type.is_one_or_many else items
        case MapType():
            names: dict[str, object] = (
                {"propertyNames": {"pattern": field_type.key.rule.regex}} if field_type.key.rule is not None else {}
            )
            return {"type": "object", "additionalProperties": _of(field_type.item, definitions), **names}
        case _:
            return _scalar(field_type)


def _scalar(field_type: FieldType) -> dict[str, object]:
    match field_type:
        case NullType():
            return {"type": "null"}
        case BooleanType():
            return {"type": "boolean"}
        case ChoiceType():
            return {"enum": list(field_type.offered)}
        case TextType():
            rule: dict[str, object] = (
                {"pattern": f"^(?:{field_type.rule.regex})$"} if field_type.rule is not None else {}
            )
            return {"type": ["string", "number", "boolean"] if field_type.is_scalar else "string", **rule}
        case IntegerType(is_size=True):
            return {"type": "string", "pattern": SIZE_REGEX, "examples": ["16GiB"]}
        case FloatType(is_duration=True):
            return {"type": "string", "pattern": DURATION_REGEX, "examples": ["20m"]}
        case IntegerType() | FloatType():
            return {"type": "integer" if isinstance(field_type, IntegerType) else "number", **_bounds(field_type)}
    return {}


def _bounds(field_type: IntegerType | FloatType) -> dict[str, object]:
    words = {
        "minimum": field_type.range.min,
        "maximum": field_type.range.max,
        "exclusiveMinimum": field_type.range.above,
    }
    return {word: value for word, value in words.items() if value is not None}


def _record(field_type: RecordType, definitions: dict[str, object]) -> dict[str, object]:
    name = field_type.cls.__name__
    if name not in definitions:
        # Set before the fields are read, so that a dataclass may contain itself.
        definitions[name] = {}
        definitions[name] = _definition(field_type.cls, definitions)
    reference: dict[str, object] = {"$ref": f"#/$defs/{name}"}
    short = shorthand_type(field_type.cls)
    return reference if short is None else {"anyOf": [_of(short, definitions), reference]}


def _definition(cls: type[object], definitions: dict[str, object]) -> dict[str, object]:
    fields = fields_of(cls)
    properties: dict[str, object] = {key: _property(field, definitions) for key, field in fields.items()}
    for key, target in key_shorthands(cls).items():
        found = _at(RecordType(cls), split_path(target))
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
    found = _of(field.type, definitions)
    if field.doc:
        found = {**found, "description": field.doc}
    default = None if field.is_required else plain(field.default(), field.type)
    return {**found, "default": default} if isinstance(default, bool | int | float | str) else found


def _at(field_type: FieldType, parts: tuple[str, ...]) -> FieldType:
    """Return the type at a path."""
    for part in parts:
        if isinstance(field_type, RecordType):
            field_type = fields_of(field_type.cls)[part].type
        elif isinstance(field_type, MapType):
            field_type = field_type.item
        else:
            return Free()
    return field_type
