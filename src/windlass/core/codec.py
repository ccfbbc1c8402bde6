"""Lossless conversion between frozen dataclasses and JSON data, based on annotations."""

from __future__ import annotations

import dataclasses
import sys
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
    if isinstance(value, (list, tuple)):
        return [encode(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value


def decode(cls: type[T], data: object) -> T:
    """Return the dataclass instance that `encode` converted. Raises TypeError or ValueError."""
    return cast(T, _decode(cls, data))


def _decode(hint: object, data: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, data)
    if origin is typing.Union:
        return None if data is None else _decode(arguments[0], data)
    if origin is typing.Literal:
        if data not in arguments:
            raise ValueError(f"expected one of {', '.join(map(str, arguments))}, not {data!r:.80}")
        return data
    if origin is tuple:
        if not isinstance(data, list):
            raise TypeError(f"expected a list, not {data!r:.80}")
        return tuple(_decode(arguments[0], item) for item in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise TypeError(f"expected a mapping, not {data!r:.80}")
        return {key: _decode(arguments[1], item) for key, item in data.items()}
    if hint is float and type(data) is int:
        return _float(data)
    if hint is Path and isinstance(data, str):
        return Path(data)
    if isinstance(hint, type) and hint not in (object, typing.Any) and type(data) is not hint:
        raise TypeError(f"expected {hint.__name__}, not {data!r:.80}")
    return data


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError as error:
        raise ValueError(f"expected float, not {number!r:.80}") from error


def _record(cls: type[object], data: object) -> object:
    if not isinstance(data, dict):
        raise TypeError(f"expected the fields of {cls.__name__}, not {data!r:.80}")
    hints = _hints_of(cls)
    unknown = data.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{cls.__name__} has no field `{min(unknown)}`")
    return cls(**{key: _decode(hints[key], value) for key, value in data.items()})


_HINTS: dict[type[object], Mapping[str, object]] = {}


def _hints_of(cls: type[object]) -> Mapping[str, object]:
    if cls not in _HINTS:
        names = vars(sys.modules[cls.__module__])
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        _HINTS[cls] = {field.name: _evaluate(str(field.type), names) for field in fields}
    return _HINTS[cls]


def _evaluate(annotation: str, names: dict[str, object]) -> object:
    """Evaluate a field's annotation; `typing.get_type_hints` fails on `float | None` in Python 3.9."""
    text = annotation.removesuffix(" | None")
    hint = eval(text, names)  # noqa: S307 - an annotation in windlass's own source
    return hint if text == annotation else typing.Optional[hint]
