"""JSON form of a scheduler: its type and arguments, with code named by its import path."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from windlass.core.errors import PreconditionError

__all__ = ["from_form", "settings_of", "to_form"]

_SPACE = "windlass.tune.space."


def settings_of(made: object) -> dict[str, object]:
    """Return `{"type": ..., **arguments}`, with each argument read from the attribute of the same name."""
    names = inspect.signature(type(made).__init__).parameters
    arguments = {name: to_form(getattr(made, name)) for name in names if name != "self"}
    return {"type": type_name(type(made)), **arguments}


def type_name(kind: type) -> str:
    """Return `PopulationBasedTraining` for a class in windlass, and `module:Name` for any other class."""
    is_ours = kind.__module__.startswith("windlass.tune.schedulers.") and "." not in kind.__qualname__
    return kind.__name__ if is_ours else f"{kind.__module__}:{kind.__qualname__}"


def to_form(value: Any) -> Any:
    """Return a value as JSON, with `{"$...": ...}` for types that JSON lacks."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [to_form(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_form(item) for item in value]}
    if isinstance(value, Mapping):
        return {str(key): to_form(item) for key, item in value.items()}
    if hasattr(value, "settings"):
        return {"$made": value.settings()}
    if type(value).__module__.startswith(_SPACE) and dataclasses.is_dataclass(value):
        fields = {field.name: to_form(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"$domain": type(value).__name__, **fields}
    return {"$code": _path_of(value)}


def from_form(form: Any, made: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Decode the output of `to_form`; `made` creates an object from its type and arguments.

    Raises:
        PreconditionError: it names code that cannot be imported (`module-not-found`).
    """
    if isinstance(form, list):
        return [from_form(item, made) for item in form]
    if not isinstance(form, Mapping):
        return form
    if "$tuple" in form:
        return tuple(from_form(item, made) for item in form["$tuple"])
    if "$made" in form:
        return made(form["$made"])
    if "$code" in form:
        return imported(form["$code"])
    if "$domain" in form:
        fields = {key: from_form(item, made) for key, item in form.items() if key != "$domain"}
        return getattr(importlib.import_module(_SPACE + "domains"), form["$domain"])(**fields)  # lazy: few need it
    return {key: from_form(item, made) for key, item in form.items()}


def imported(path: str) -> Any:
    """Import the object named `module:name`.

    Raises:
        PreconditionError: it cannot be imported, for example because it was defined in a function.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        raise PreconditionError(
            f"the scheduler of this sweep needs {path}, which cannot be imported here",
            hint="pass the scheduler again when you restore the sweep, or move the code into a module",
            code="module-not-found",
        ) from None
    return found


def _path_of(code: Any) -> str:
    kind = code if hasattr(code, "__qualname__") else type(code)
    return f"{kind.__module__}:{kind.__qualname__}"
