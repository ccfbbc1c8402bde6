"""Lossless conversion between frozen dataclasses and JSON data, based on annotations."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TypeVar, cast

__all__ = ["decode", "encode"]

T = TypeVar("T")


def encode(value: object) -> object:
    """Convert dataclasses and mappings to dicts, and tuples to lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value


def decode(cls: type[T], data: object) -> T:
    """Return the dataclass instance that `encode` converted. Raises TypeError or ValueError."""
    return cast(T, _decode(cls, data))


def _decode(hint: object, data: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, data)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not types.NoneType]
        return None if data is None else _decode(options[0], data)
    if origin is tuple:
        if not isinstance(data, list):
            raise TypeError(f"expected a list, not {data!r}")
        return tuple(_decode(arguments[0], item) for item in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise TypeError(f"expected a mapping, not {data!r}")
        return {key: _decode(arguments[1], item) for key, item in data.items()}
    if hint is float and type(data) is int:
        return float(data)
    if hint is Path and isinstance(data, str):
        return Path(data)
    if isinstance(hint, type) and hint not in (object, typing.Any) and type(data) is not hint:
        raise TypeError(f"expected {hint.__name__}, not {data!r}")
    return data


def _record(cls: type[object], data: object) -> object:
    if not isinstance(data, dict):
        raise TypeError(f"expected the fields of {cls.__name__}, not {data!r}")
    hints = _hints_of(cls)
    unknown = data.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{cls.__name__} has no field `{min(unknown)}`")
    return cls(**{key: _decode(hints[key], value) for key, value in data.items()})


_HINTS: dict[type[object], Mapping[str, object]] = {}


def _hints_of(cls: type[object]) -> Mapping[str, object]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]
