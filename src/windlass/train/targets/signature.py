"""Signature of a target in a recipe: its parameters, as fields that a file can set."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from windlass.config.annotations import Free
from windlass.config.encode import plain
from windlass.config.field_types import field_type_of, fields_of
from windlass.core.errors import UsageError
from windlass.train.reference import load_reference

__all__ = ["Signature", "read_signature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Signature of a target: the parameters that can be set, and those that windlass passes.

    Attributes:
        call: the target itself.
        schema: a dataclass with a field for each parameter that `args` may set.
        given: parameters that windlass passes.
        takes_any: whether it accepts any keyword (`**kwargs`).
    """

    call: Callable[..., Any]
    schema: type[object]
    given: tuple[str, ...]
    takes_any: bool

    def written(self, values: object) -> dict[str, Any]:
        """Return all fields as plain data, including the defaults that a file can represent."""
        found = {}
        for name, field in fields_of(self.schema).items():
            data = plain(getattr(values, name), field.type, keep_defaults=True)
            if _is_plain(data):
                found[name] = data
        return found


def read_signature(target: str, offers: Collection[str]) -> Signature:
    """Import a target and read its signature.

    Args:
        offers: names that windlass passes if the target has such a parameter.

    Raises:
        WindlassError: it cannot be imported or called.
    """
    call = load_reference(target)
    if not callable(call):
        message = f"`{target}` is a {type(call).__name__}, which cannot be called"
        raise UsageError(message, hint="name a function, a class or a dataclass", code="invalid-value")
    try:
        parameters = dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = {"args": inspect.Parameter("args", inspect.Parameter.VAR_KEYWORD)}
    hints = _hints_of(call)
    fields: list[Any] = []
    given = []
    takes_any = False
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif name in offers and parameter.kind is not parameter.VAR_POSITIONAL:
            given.append(name)
        elif parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            message = f"`{target}` has the positional-only parameter `{name}`, but `args` are passed by name"
            raise UsageError(message, hint="remove the `/` from its signature", code="invalid-value")
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            fields.append(_field_of(parameter, hints.get(name, Any)))
    schema = dataclasses.make_dataclass("Arguments", fields, frozen=True, kw_only=True)
    _read_nested(schema, target)
    return Signature(call=call, schema=schema, given=tuple(given), takes_any=takes_any)


def _read_nested(schema: type[object], target: str) -> None:
    """Read nested fields, so that a field that no file can represent is reported early."""
    try:
        fields_of(schema)
    except TypeError as error:
        raise UsageError(f"`{target}`: {error}", hint="change the type of that field", code="invalid-value") from error


def _hints_of(call: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of the parameters; empty if one cannot be resolved."""
    is_fields = isinstance(call, type) and (dataclasses.is_dataclass(call) or "__init__" not in vars(call))
    owner: Any = call if not isinstance(call, type) or is_fields else vars(call)["__init__"]
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, TypeError, AttributeError):  # imported only for type checkers, or not a function
        return {}


def _field_of(parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    read = _readable(hint)
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, read
    if parameter.default is None:
        read = read | None if not _is_free(read) else read
    default = dataclasses.field(default_factory=functools.partial(_same, parameter.default))
    return parameter.name, read, default


def _same(value: object) -> object:
    return value


def _readable(hint: Any) -> Any:
    """Return the annotation without union options that a file cannot represent, or Any if nothing is left."""
    try:
        field_type_of(hint)
    except TypeError:
        pass
    else:
        return hint
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        known = [option for option in map(_readable, inner) if not _is_free(option)]
        if known:
            return functools.reduce(lambda left, right: left | right, known)
    if origin is tuple and inner and len(set(inner)) == 1:
        return types.GenericAlias(tuple, (_readable(inner[0]), ...))
    return Annotated[object, Free()]


def _is_free(hint: Any) -> bool:
    return any(isinstance(note, Free) for note in getattr(hint, "__metadata__", ()))


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
