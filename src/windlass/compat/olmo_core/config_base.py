"""Base class for configurations: OLMo-core's own if it is loaded, else one with the methods that scripts call."""

from __future__ import annotations

import copy
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.config.foreign_text import load_foreign_yaml
from windlass.core.errors import UsageError
from windlass.core.names import nearest

__all__ = ["Base", "Config"]

C = TypeVar("C", bound="Config")


@dataclasses.dataclass
class Config:
    """Dataclass that converts to and from a dict and accepts overrides such as `launch.num_nodes=2`."""

    def as_dict(
        self, *, exclude_none: bool = False, exclude: Collection[str] | None = None, **settings: object
    ) -> dict[str, Any]:
        """Return the fields, including nested ones, as plain values.

        OLMo-core's other settings are accepted without effect.
        """
        del settings
        found = dataclasses.asdict(self)
        return {
            key: value
            for key, value in found.items()
            if key not in (exclude or ()) and not (exclude_none and value is None)
        }

    def as_config_dict(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        return self.as_dict(exclude_none=True)

    def apply(self, func: Callable[[Config], None]) -> None:
        """Call a function with this configuration and with every nested one."""
        func(self)
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, Config):
                    value.apply(func)

    def validate(self) -> None:
        """Check the fields; the default does nothing."""

    def replace(self, **changes: Any) -> typing.Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def copy(self, deep: bool = True) -> typing.Self:
        """Return a copy."""
        return copy.deepcopy(self) if deep else copy.copy(self)

    def merge(self, dotlist: Sequence[str], prefix: str | None = None, strict: bool = True) -> typing.Self:
        """Return a copy with overrides `KEY=VALUE`; with a prefix, overrides without it are ignored.

        Raises:
            UsageError: an unknown key (if `strict`), or no `=`.
        """
        data = self.as_dict()
        for text in dotlist:
            key, has_value, value = text.removeprefix("--").partition("=")
            if prefix is not None:
                if not key.startswith(f"{prefix}."):
                    continue
                key = key.removeprefix(f"{prefix}.")
            if key.partition(".")[0] not in data and not strict:
                continue
            if not has_value:
                raise UsageError(f"`{text}` is not a valid override", hint=f"write `{key}=VALUE`", code="invalid-value")
            _set(data, key.split("."), _parsed(value), text)
        return type(self).from_dict(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any], overrides: Sequence[str] | None = None) -> typing.Self:
        """Return the configuration from a dict made by `as_dict`.

        Raises:
            UsageError: a key that is not a field.
        """
        made = _decoded(cls, data)
        assert isinstance(made, cls)
        return made.merge(overrides) if overrides else made


def _parsed(text: str) -> Any:
    import yaml  # lazy: only an override needs it

    try:
        return load_foreign_yaml(text, source="<override>")
    except yaml.YAMLError:
        return text


def _set(data: Any, keys: list[str], value: Any, text: str) -> None:
    for key in keys[:-1]:
        data = data[_index(data, key, text)]
    data[_index(data, keys[-1], text)] = value


def _index(data: Any, key: str, text: str) -> Any:
    if isinstance(data, dict) and key in data:
        return key
    if isinstance(data, list) and key.isdecimal() and int(key) < len(data):
        return int(key)
    close = nearest(key, data) if isinstance(data, dict) else ""
    hint = f"did you mean `{close}`?" if close else "check the key"
    raise UsageError(f"`{text}`: no such key `{key}`", hint=hint, code="unknown-key")


def _decoded(kind: Any, value: Any) -> Any:
    """Convert dicts to the dataclasses named by the annotation; return other values unchanged."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kinds = [each for each in typing.get_args(kind) if each is not type(None)]
        return value if value is None else _decoded(kinds[0], value)
    if kind is str and isinstance(value, int | float):
        return str(value)
    if typing.get_origin(kind) is list and isinstance(value, list):
        return [_decoded(typing.get_args(kind)[0], each) for each in value]
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        names = {field.name for field in dataclasses.fields(kind)}
        for key in value:
            if key not in names:
                close = nearest(key, names)
                hint = f"did you mean `{close}`?" if close else f"available: {', '.join(sorted(names))}"
                raise UsageError(f"`{key}` is not a field", hint=hint, code="unknown-key")
        made = {key: _decoded(hints[key], each) for key, each in value.items()}
        return kind(**made)  # type: ignore[operator]  # `is_dataclass` of a class
    return value


if TYPE_CHECKING:
    Base = Config
else:
    _loaded = sys.modules.get("olmo_core.config")
    Base = Config if _loaded is None else _loaded.Config
    """Base of this package's classes: scripts nest them in their own configurations, and OLMo-core checks their class."""
