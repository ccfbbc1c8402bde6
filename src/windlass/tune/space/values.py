"""Lossless conversion of configurations to JSON and back, including tuples, paths and importable objects.

Plain JSON is unchanged. Unsupported values raise an error that names the parameter.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from pathlib import PurePath
from typing import Any

from windlass.tune.errors import SpaceError

__all__ = ["flat", "from_json", "import_name", "imported", "is_same", "plain", "to_json"]

_PLAIN = (str, int, float, bool, type(None))
_TUPLE, _PATH, _IMPORT, _ITEMS = "$tuple", "$path", "$import", "$items"
_TAGS = frozenset({_TUPLE, _PATH, _IMPORT, _ITEMS})


def plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number; return other values unchanged."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal once in a journal, where tuples become lists."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    return one is other or bool(one == other)


def to_json(value: Any, place: str = "config") -> Any:
    """Return a value in JSON form.

    Raises:
        SpaceError: something in it is neither JSON nor importable by its name.
    """
    value = plain(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value) and not (len(value) == 1 and next(iter(value)) in _TAGS):
            return {name: to_json(below, f"{place}/{name}") for name, below in value.items()}
        items = [[to_json(name, place), to_json(below, f"{place}/{name}")] for name, below in value.items()]
        return {_ITEMS: items}
    if isinstance(value, (list, tuple)):
        listed = [to_json(below, f"{place}/{index}") for index, below in enumerate(value)]
        return {_TUPLE: listed} if isinstance(value, tuple) else listed
    if isinstance(value, PurePath):
        return {_PATH: str(value)}
    if isinstance(value, _PLAIN):  # an enumeration of text or numbers, say
        return type(value).__mro__[-2](value) if type(value).__mro__[-2] in _PLAIN else str(value)
    if name := import_name(value):
        return {_IMPORT: name}
    raise SpaceError(
        f"`{place}` is {_short(value)}, which cannot be written into the sweep's journal",
        hint="use plain values in the space; pass objects to the trainable with tune.with_parameters",
        code="not-serialisable",
    )


def from_json(value: Any) -> Any:
    """Decode the output of `to_json`.

    Raises:
        SpaceError: an object can no longer be imported.
    """
    if isinstance(value, list):
        return [from_json(below) for below in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, inner), *_ = value.items()
        if tag == _TUPLE:
            return tuple(from_json(inner))
        if tag == _PATH:
            return type(PurePath())(inner)
        if tag == _IMPORT:
            return imported(inner)
        if tag == _ITEMS:
            return {from_json(name): from_json(below) for name, below in inner}
    return {name: from_json(below) for name, below in value.items()}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values in a nested configuration by name: `{"model/layers": 4}`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found.update(flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return found


def import_name(value: Any) -> str:
    """Return `module:name` for a class or function that other processes can import, else an empty string."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return ""
    try:
        found = imported(f"{module}:{name}")
    except SpaceError:
        return ""
    return f"{module}:{name}" if found is value else ""


def imported(name: str) -> Any:
    """Import the object named `module:name`.

    Raises:
        SpaceError: it cannot be imported.
    """
    module, _, path = name.partition(":")
    try:
        return reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise SpaceError(
            f"cannot import {name!r}: {error}",
            hint="make it importable, or pass param_space again",
            code="module-not-found",
        ) from error


def _short(value: Any) -> str:
    text = f"{value!r}"
    return f"{text[:80]}... ({type(value).__qualname__})" if len(text) > 80 else f"{text} ({type(value).__qualname__})"
