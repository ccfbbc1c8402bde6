"""Registry of trainables by name, for `Tuner("name")` and `tune.run("name")` in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.names import nearest
from windlass.tune.errors import BadTypeError, BadValueError

__all__ = ["name_of", "register_env", "register_trainable", "resolve_trainable"]

_trainables: dict[str, Any] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Register a function or class under a name, replacing an earlier one.

    `warn` is accepted for compatibility; there is never a warning.

    Raises:
        UsageError: it is neither a function nor a class.
    """
    del warn
    if not callable(trainable):
        hint = "pass a function of the configuration, or a subclass of tune.Trainable"
        raise BadTypeError(
            f"cannot register {name!r}: {trainable!r} is not a trainable", hint=hint, code="invalid-value"
        )
    _trainables[name] = trainable


def resolve_trainable(trainable: Any) -> Any:
    """Return the trainable, which is looked up if it is given by name.

    Raises:
        NotFoundError: the name is not registered.
        UsageError: it is neither a name, a function nor a class.
    """
    if isinstance(trainable, str):
        if trainable not in _trainables:
            near = nearest(trainable, _trainables)
            hint = f"did you mean {near!r}?" if near else "call tune.register_trainable(name, trainable) first"
            raise NotFoundError(f"unknown trainable {trainable!r}", hint=hint, code="unknown-name")
        return _trainables[trainable]
    if not callable(trainable):
        hint = "pass a function of the configuration, a subclass of tune.Trainable, or a registered name"
        raise BadValueError(f"{trainable!r} is not a trainable", hint=hint, code="invalid-value")
    return trainable


def name_of(trainable: Any) -> str:
    """Return the name of a trainable as shown to users."""
    inner = getattr(trainable, "func", trainable)  # of a functools.partial
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "lambda" if name == "<lambda>" else name


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Register an environment for RLlib, which looks for it in Ray's own registry.

    Raises:
        WindlassError: Ray is not installed.
    """
    try:
        from ray.tune.registry import register_env as register  # lazy: ray takes a second
    except ImportError as error:
        hint = "pip install 'windlass[ray]' 'ray[rllib]'"
        raise WindlassError(
            f"cannot register the environment {name!r}: only RLlib uses it, and Ray is not installed",
            hint=hint,
            code="extra-missing",
        ) from error
    register(name, env_creator)
