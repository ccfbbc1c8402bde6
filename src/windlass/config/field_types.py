"""Field types, parsed once from the annotations of dataclasses."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import (
    Doc,
    DurationText,
    Free,
    Key,
    Name,
    OneOrMany,
    Pattern,
    Planned,
    Range,
    ScalarText,
    SizeText,
)
from windlass.core.dataclass import dataclass

__all__ = [
    "BooleanType",
    "ChoiceType",
    "Field",
    "FieldType",
    "FloatType",
    "Free",
    "IntegerType",
    "ListType",
    "MapType",
    "NullType",
    "OneOfType",
    "RecordType",
    "TextType",
    "field_type_of",
    "fields_of",
    "key_shorthands",
    "shorthand_type",
    "tag_of",
]


class NullType:
    """`null` only."""

    __slots__ = ()


class BooleanType:
    """`true` or `false`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IntegerType:
    """Whole number, or a size in bytes."""

    range: Range = Range()
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class FloatType:
    """Number, or a duration in seconds."""

    range: Range = Range()
    is_duration: bool = False


@dataclass(frozen=True, slots=True)
class TextType:
    """Text, optionally with a rule for its form."""

    rule: Name | Pattern | None = None
    is_scalar: bool = False
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceType:
    """Value from a list of choices, or of an enum; planned values are never suggested."""

    values: tuple[str | int | bool, ...]
    enum: type[enum.Enum] | None = None
    planned: tuple[str, ...] = ()

    @property
    def offered(self) -> tuple[str | int | bool, ...]:
        """Return the values that are supported now, without planned ones."""
        return tuple(value for value in self.values if value not in self.planned)


@dataclass(frozen=True, slots=True)
class ListType:
    """List of items of one type; decoded to a tuple unless the annotation is `list`."""

    item: FieldType
    is_one_or_many: bool = False
    is_tuple: bool = True


@dataclass(frozen=True, slots=True)
class MapType:
    """Mapping of user-defined keys to values of one type."""

    key: TextType
    item: FieldType


@dataclass(frozen=True, slots=True)
class RecordType:
    """Mapping that becomes a dataclass; see `fields_of` for its fields."""

    cls: type[object]


@dataclass(frozen=True, slots=True)
class OneOfType:
    """Union of several types."""

    options: tuple[FieldType, ...]


FieldType: TypeAlias = (
    NullType
    | BooleanType
    | IntegerType
    | FloatType
    | TextType
    | ChoiceType
    | Free
    | ListType
    | MapType
    | RecordType
    | OneOfType
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Field of a dataclass, as it is written in a file."""

    name: str
    key: str
    type: FieldType
    doc: str
    is_required: bool
    default: typing.Callable[[], object]


_FIELDS: dict[type[object], Mapping[str, Field]] = {}


def fields_of(cls: type[object]) -> Mapping[str, Field]:
    """Return the fields of a dataclass by key. Raises TypeError for unsupported types."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _read_fields(cls)
    return _FIELDS[cls]


def _read_fields(cls: type[object]) -> Mapping[str, Field]:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__qualname__} is not a dataclass")
    # InitVar fields exist only in Python and have no key.
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        if field.init:
            read = _field(field, hints[field.name], cls)
            found[read.key] = read
    return types.MappingProxyType(found)


def _field(field: dataclasses.Field[object], hint: object, cls: type[object]) -> Field:
    notes = _notes(hint)
    try:
        field_type = field_type_of(hint)
    except TypeError as error:
        raise TypeError(f"{cls.__qualname__}.{field.name}: {error}") from None
    is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    if field.default_factory is not dataclasses.MISSING:
        default: typing.Callable[[], object] = field.default_factory
    else:
        default = functools.partial(_same, field.default)
    return Field(
        name=field.name,
        key=next((note.name for note in notes if isinstance(note, Key)), field.name),
        type=field_type,
        doc=next((note.text for note in reversed(notes) if isinstance(note, Doc)), ""),
        is_required=is_required,
        default=default,
    )


def _same(value: object) -> object:
    return value


def _notes(hint: object) -> tuple[object, ...]:
    return tuple(getattr(hint, "__metadata__", ()))


def key_shorthands(cls: type[object]) -> Mapping[str, str]:
    """Return the keys that stand for a longer path, such as `run` for `tasks.main.run`."""
    found: Mapping[str, str] = getattr(cls, "KEY_SHORTHANDS", {})
    return found


def shorthand_type(cls: type[object]) -> FieldType | None:
    """Return the type that `from_shorthand` accepts; None if there is no short form."""
    method: object = getattr(cls, "from_shorthand", None)
    return None if method is None else field_type_of(typing.get_type_hints(method, include_extras=True)["value"])


def tag_of(cls: type[object]) -> tuple[str | int | bool, ...]:
    """Return the values of `kind` that select this dataclass in a union; may be empty."""
    field = fields_of(cls).get("kind")
    return field.type.values if field is not None and isinstance(field.type, ChoiceType) else ()


def field_type_of(hint: object, notes: tuple[object, ...] = ()) -> FieldType:
    """Parse an annotation. Raises TypeError for a type that files cannot contain."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return field_type_of(typing.get_args(hint)[0], (*_notes(hint), *notes))
    for note in notes:
        if isinstance(note, Free):
            return note
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint), notes)
    if origin is Literal:
        planned = next((note.values for note in notes if isinstance(note, Planned)), ())
        return ChoiceType(typing.get_args(hint), planned=planned)
    if origin in (tuple, list):
        return _list(hint, notes)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = typing.get_args(hint)
        key_type = field_type_of(key)
        if not isinstance(key_type, TextType):
            raise TypeError(f"the keys of {hint} are not text")
        return MapType(key_type, field_type_of(item))
    if isinstance(hint, type):
        return _plain(hint, notes)
    raise TypeError(f"{hint} cannot be written to a file")


def _plain(hint: type[object], notes: tuple[object, ...]) -> FieldType:
    bounds = next((note for note in notes if isinstance(note, Range)), Range())
    if hint is type(None):
        return NullType()
    if hint is bool:
        return BooleanType()
    if hint is int:
        return IntegerType(bounds, any(isinstance(note, SizeText) for note in notes))
    if hint is float:
        return FloatType(bounds, any(isinstance(note, DurationText) for note in notes))
    if hint is str or hint is Path:
        rule = next((note for note in notes if isinstance(note, Name | Pattern)), None)
        return TextType(rule, any(isinstance(note, ScalarText) for note in notes), hint is Path)
    if issubclass(hint, enum.Enum):
        return ChoiceType(tuple(member.value for member in hint), hint)
    if dataclasses.is_dataclass(hint):
        return RecordType(hint)
    raise TypeError(f"{hint.__qualname__} cannot be written to a file")


def _union(options: Sequence[object], notes: tuple[object, ...]) -> OneOfType:
    field_types = tuple(field_type_of(option, notes) for option in options)
    records = [field_type.cls for field_type in field_types if isinstance(field_type, RecordType)]
    if len(records) > 1 and not all(tag_of(cls) for cls in records):
        names = " | ".join(cls.__qualname__ for cls in records)
        raise TypeError(f"{names}: a union of dataclasses needs a field `kind` of a Literal type in each")
    return OneOfType(field_types)


def _list(hint: object, notes: tuple[object, ...]) -> ListType:
    is_tuple = typing.get_origin(hint) is tuple
    arguments = typing.get_args(hint)
    if is_tuple and (len(arguments) != 2 or arguments[1] is not ...):
        raise TypeError(f"{hint} is not tuple[T, ...]")
    return ListType(field_type_of(arguments[0]), any(isinstance(note, OneOrMany) for note in notes), is_tuple)
