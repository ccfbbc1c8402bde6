"""Names for trainables, so that `Tuner("name")` and `tune.run("name")` find them in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.names import nearest
from windlass.tune.errors import BadTypeError, BadValueError

__all__ = ["name_of", "register_env", "register_trainable", "resolve_trainable"]

_trainables: dict[str, Any] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Give a function or class a name; the newest one of a name counts. `warn` is accepted, and nothing is warned of.

    Raises:
        UsageError: it is neither a function nor a class.
    """
    del warn
    if not callable(trainable):
        hint = "pass a function of the configuration, or a subclass of tune.Trainable"
        raise BadTypeError(f"{name!r} cannot name a {type(trainable).__name__}", hint=hint, code="bad-value")
    _trainables[name] = trainable


def resolve_trainable(trainable: Any) -> Any:
    """The trainable itself, looked up where it is a name.

    Raises:
        NotFoundError: nothing has this name.
        UsageError: it is neither a name, a function nor a class.
    """
    if isinstance(trainable, str):
        if trainable not in _trainables:
            near = nearest(trainable, _trainables)
            hint = f"did you mean {near!r}?" if near else "call tune.register_trainable(name, trainable) first"
            raise NotFoundError(f"no trainable is named {trainable!r}", hint=hint, code="unknown-name")
        return _trainables[trainable]
    if not callable(trainable):
        hint = "pass a function of the configuration, a subclass of tune.Trainable, or a registered name"
        raise BadValueError(f"a {type(trainable).__name__} cannot be tuned: {trainable!r}", hint=hint, code="bad-value")
    return trainable


def name_of(trainable: Any) -> str:
    """What people call a trainable."""
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
        hint = "pip install 'windlass[ray]', and RLlib"
        raise WindlassError(
            f"the environment {name!r} is of use to RLlib only, and Ray is not installed",
            hint=hint,
            code="extra-missing",
        ) from error
    register(name, env_creator)
