"""Reports as JSON: nested names are flattened, and NumPy and torch scalars become plain numbers.

Reports are frequent, so each plain value costs only one lookup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.core.json_text import decode_json
from windlass.tune.errors import BadValueError
from windlass.tune.trial import Metrics

__all__ = ["TIME_DIGITS", "check_config", "flatten_metrics", "to_json_value"]

TIME_DIGITS = 9
"""Decimals of measured seconds, which match clock precision and keep journals small."""

_PLAIN = frozenset({float, int, str, bool, type(None)})


def flatten_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Return metrics with `a/b` for nested names, and only JSON values; NaN and infinities remain floats.

    Raises:
        UsageError: a value is not a number, text, or a list or mapping of these; the message names its key.
    """
    if not isinstance(metrics, Mapping):
        raise BadValueError(
            f"a trial reported {metrics!r:.100}, not a mapping",
            hint='report names and values: tune.report({"loss": 0.1})',
            code="invalid-value",
        )
    flat: Metrics = {}
    for key, value in metrics.items():
        if type(value) in _PLAIN and type(key) is str:
            flat[key] = value
        else:
            _flatten(str(key), value, flat)
    return flat


def _flatten(key: str, value: object, into: Metrics) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(f"{key}/{name}", inner, into)
    else:
        into[key] = to_json_value(value, f"metric `{key}`", "report a number: `float(x)`, or `.tolist()` of an array")


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as JSON, with NumPy and torch scalars as plain numbers and tuples as lists.

    Raises:
        UsageError: a value cannot be written as JSON; the message names its key.
    """
    checked = to_json_value(
        config,
        "config",
        "choose among names and create the object in the trainable; pass big objects with tune.with_parameters",
    )
    assert isinstance(checked, dict)
    return checked


def to_json_value(value: object, where: str, hint: str) -> Any:
    """Return a value in a form that JSON can represent.

    Args:
        where: the value's name for the message, such as "metric `loss`".
        hint: hint of the error.

    Raises:
        UsageError: it cannot be written as JSON.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {_key(name): to_json_value(inner, f"{where}[{name!r}]", hint) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner, f"{where}[{index}]", hint) for index, inner in enumerate(value)]
    if isinstance(value, bool | int | float | str):  # subclasses, such as numpy's float64 and enums of text
        return decode_json(json.dumps(value))
    found = _scalar(value)
    if type(found) in _PLAIN:
        return found
    raise BadValueError(
        f"{where} is {value!r:.100}, a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot represent",
        hint=hint,
        code="not-serialisable",
    )


def _key(name: object) -> str:
    return name if type(name) is str else str(name)


def _scalar(value: object) -> object:
    """Convert a scalar or one-element array from NumPy, torch and the like to a number; return others unchanged."""
    item, size = getattr(value, "item", None), getattr(value, "size", None)
    num = getattr(value, "numel", size)
    count = num() if callable(num) else num
    if not callable(item) or count not in (1, None):
        return value
    found = item()
    return found if type(found) in _PLAIN else value
