"""Encoding of a value as plain data in its short form."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windlass.config.field_types import (
    ChoiceType,
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
    tag_of,
)
from windlass.config.numbers import format_seconds
from windlass.core.units import format_size

__all__ = ["plain", "to_data"]


def to_data(value: object, *, keep_defaults: bool = False, is_long: bool = False) -> dict[str, object]:
    """Return plain dicts, lists and scalars that `from_data` turns into an equal value.

    Args:
        keep_defaults: also write fields that equal their default.
        is_long: write this dataclass as a mapping even if it has a short form; nested ones stay short.
    """
    cls = type(value)
    found = {}
    for key, field in fields_of(cls).items():
        inner = getattr(value, field.name)
        # `kind` selects the dataclass in a union, so it is always written.
        if keep_defaults or is_long or field.is_required or key == "kind" or not _same(inner, field.default()):
            found[key] = plain(inner, field.type, keep_defaults=keep_defaults)
    return found


def _same(first: object, second: object) -> bool:
    return type(first) is type(second) and first == second


def plain(value: object, field_type: FieldType, *, keep_defaults: bool = False) -> object:
    """Convert a value to plain data; a value that does not match its type is unchanged."""
    if isinstance(field_type, OneOfType):
        field_type = _option(value, field_type)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value, keep_defaults)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        inner: FieldType = field_type.item if isinstance(field_type, MapType) else Free()
        return {key: plain(item, inner, keep_defaults=keep_defaults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _list(value, field_type, keep_defaults)
    return _scalar(value, field_type)


def _list(value: Sequence[object], field_type: FieldType, keep_defaults: bool) -> object:
    inner: FieldType = field_type.item if isinstance(field_type, ListType) else Free()
    items = [plain(item, inner, keep_defaults=keep_defaults) for item in value]
    is_single = isinstance(field_type, ListType) and field_type.is_one_or_many and len(items) == 1
    return items[0] if is_single and items[0] is not None and not isinstance(items[0], list) else items


def _scalar(value: object, field_type: FieldType) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(field_type, FloatType) and field_type.is_duration:
        return format_seconds(value)
    if isinstance(field_type, IntegerType) and field_type.is_size and isinstance(value, int) and value >= 0:
        return format_size(value)
    return value


def _record(value: object, keep_defaults: bool) -> object:
    to_shorthand: Callable[[], object] | None = getattr(value, "to_shorthand", None)
    if to_shorthand is not None and not keep_defaults:
        short = to_shorthand()
        if short is not None:
            return short
    return to_data(value, keep_defaults=keep_defaults)


def _option(value: object, field_type: OneOfType) -> FieldType:
    """Return the option of a union to which a value belongs; the first one if none fits."""
    for option in field_type.options:
        if _fits(value, option):
            return option
    return field_type.options[0]


def _fits(value: object, field_type: FieldType) -> bool:
    match field_type:
        case OneOfType():
            return any(_fits(value, option) for option in field_type.options)
        case NullType():
            return value is None
        case RecordType():
            return type(value) is field_type.cls and (
                not tag_of(field_type.cls) or getattr(value, "kind", None) in tag_of(field_type.cls)
            )
        case ListType():
            return isinstance(value, list | tuple)
        case MapType():
            return isinstance(value, Mapping)
        case TextType():
            return isinstance(value, str | Path)
        case ChoiceType():
            return (
                isinstance(value, field_type.enum)
                if field_type.enum is not None
                else any(value == legal and type(value) is type(legal) for legal in field_type.values)
            )
        case IntegerType():
            return isinstance(value, int) and not isinstance(value, bool)
        case FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
    return True
