"""A callback of the user's own, by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.train.callbacks.protocol import Callback
from windlass.train.reference import load_reference

__all__ = ["load_callback"]


def load_callback(call: str, args: Mapping[str, Any], *, where: str = "callbacks") -> Callback:
    """Call `module:Class` or `file.py:Class` with `args`.

    Args:
        where: path of the settings, for errors.

    Raises:
        SpecError: it cannot be imported or called, or makes no Callback.
    """
    try:
        found = load_reference(call)
    except WindlassError as error:
        raise _refusal(f"{where}.call: {error.message}", error.code, error.hint) from error
    if not callable(found):
        raise _refusal(f"{where}.call: {call} is no class or function", "bad-callback", "name a subclass of Callback")
    try:
        callback = found(**args)
    except TypeError as error:
        hint = f"compare `{where}.args` with the arguments that it takes"
        raise _refusal(f"{where}: {call} was called with {sorted(args)}: {error}", "bad-callback", hint) from error
    if not isinstance(callback, Callback):
        message = f"{where}.call: {call} makes a {type(callback).__name__}, which is no Callback"
        raise _refusal(message, "bad-callback", "let it be a subclass of windlass.train.Callback")
    return callback


def _refusal(message: str, code: str, hint: str) -> SpecError:
    return SpecError([Problem(message, code, None, hint)])
