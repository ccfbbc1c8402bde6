"""Paths that an override can set, for shell completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from windlass.config.field_types import FieldType, ListType, MapType, OneOfType, RecordType, fields_of, key_shorthands
from windlass.config.path import join_path

__all__ = ["override_paths"]

_MAX_DEPTH = 8


def override_paths(schema: type[object], data: Mapping[str, object] | None = None) -> list[str]:
    """Return the dotted paths of all fields, in order.

    Args:
        data: plain data of a file; its keys (task names, parameters) replace the schema's placeholder `NAME`.
    """
    found = dict.fromkeys(_paths(RecordType(schema), (), {} if data is None else data, data is None))
    return list(found)


def _paths(field_type: FieldType, path: tuple[str, ...], data: object, is_open: bool) -> Iterator[str]:
    if len(path) > _MAX_DEPTH:
        return
    match field_type:
        case RecordType():
            held = data if isinstance(data, Mapping) else {}
            for key, field in fields_of(field_type.cls).items():
                yield join_path((*path, key))
                yield from _paths(field.type, (*path, key), held.get(key), is_open)
            for key in key_shorthands(field_type.cls):
                yield join_path((*path, key))
        case MapType():
            held = data if isinstance(data, Mapping) else {}
            for key in ["NAME"] if is_open else held:
                yield join_path((*path, key))
                yield from _paths(field_type.item, (*path, key), held.get(key), is_open)
        case OneOfType():
            for option in field_type.options:
                yield from _paths(option, path, data, is_open)
        case ListType():
            if isinstance(data, list):
                for index, item in enumerate(data):
                    yield from _paths(field_type.item, (*path, str(index)), item, is_open)
