"""From a point of a space to overrides of an experiment: `lr` is short for `params.lr`, other names are paths."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields

from windlass.config import join_path, split_path
from windlass.core.errors import UsageError
from windlass.spec import Experiment

__all__ = ["check_name", "overrides_of", "path_of"]

_SECTIONS = frozenset(field.name for field in fields(Experiment)) - {"sweep"}
_PINNED = ("code", "data", "env", "name", "where", "why")
"""What every trial of a sweep shares: it is pinned once, before the first trial."""


def path_of(name: str) -> str:
    """The setting that a name of the space means: `lr` is `params.lr`, `tasks.train.gpus` is itself."""
    parts = split_path(name)
    is_path = len(parts) > 1 and parts[0] in _SECTIONS
    return join_path(parts if is_path else ("params", *parts))


def check_name(name: str) -> str:
    """The setting that a name means.

    Raises:
        UsageError: it is no path, or it is pinned for the whole sweep.
    """
    try:
        path = path_of(name)
    except ValueError as error:
        raise UsageError(f"`{name}` names no setting: {error}", hint="such as `lr` or `tasks.train.gpus`") from error
    section = split_path(path)[0]
    if section in _PINNED:
        raise UsageError(
            f"`{name}` cannot vary: `{section}` is the same for all trials of a sweep",
            hint="vary parameters, resources or limits: `lr`, `tasks.train.gpus`, `limit.time`",
            code="sweep-pinned",
        )
    return path


def overrides_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """The overrides that make an experiment the trial with this configuration, sorted by nothing but the space."""
    return tuple(f"{path_of(join_path(parts))}={_text(value)}" for parts, value in _leaves(config, ()))


def _leaves(config: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in config.items():
        parts = (*above, *split_path(name)) if not above else (*above, name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, parts)
        else:
            yield parts, value


def _text(value: object) -> str:
    """The value as an override writes it; exact for every JSON value, NaN and infinities too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    return json.dumps(value, ensure_ascii=False, default=_number)


def _number(value: object) -> object:
    """Numbers of numpy as numbers."""
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise UsageError(
        f"{value!r} in the configuration of a trial is no JSON value",
        hint="use numbers, text, true, false, null, lists and mappings",
        code="not-json",
    )
