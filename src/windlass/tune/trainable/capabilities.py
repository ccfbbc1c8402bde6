"""Checks of a trainable, and of what it can do, before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from windlass.tune.errors import BadTypeError, BadValueError
from windlass.tune.trainable.class_api import Trainable

__all__ = ["can_save", "check_trainable", "is_class", "name_of"]

Code = type | Callable[..., Any]


def is_class(trainable: Code) -> bool:
    """Return whether a trainable is a class with steps rather than a function."""
    return isinstance(trainable, type) and issubclass(trainable, Trainable)


def name_of(trainable: Code) -> str:
    """Return the name of the trainable's class or function."""
    inner = inspect.unwrap(trainable)
    while hasattr(inner, "func"):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    return "function" if name == "<lambda>" else str(name)


def can_save(trainable: Code) -> bool:
    """Return whether trials can be paused and cloned, which is assumed for functions, since they report checkpoints."""
    if not is_class(trainable):
        return True
    assert isinstance(trainable, type)
    return any(getattr(trainable, name) is not getattr(Trainable, name) for name in ("save_checkpoint", "_save"))


def check_trainable(trainable: object) -> None:
    """Check that an object is a trainable.

    Raises:
        UsageError: it is neither a subclass of `Trainable` nor a function of one argument.
    """
    hint = "pass a subclass of tune.Trainable, or a function of the configuration"
    if isinstance(trainable, type) and not issubclass(trainable, Trainable):
        raise BadTypeError(
            f"class {trainable.__name__} is not a subclass of tune.Trainable", hint=hint, code="invalid-trainable"
        )
    if not callable(trainable):
        raise BadValueError(f"{trainable!r:.60} is not a trainable", hint=hint, code="invalid-trainable")
    if is_class(trainable):
        if all(getattr(trainable, name) is getattr(Trainable, name) for name in ("step", "_train")):
            hint = "override step(self) and return the metrics of one iteration"
            raise BadValueError(f"{name_of(trainable)} has no `step`", hint=hint, code="invalid-trainable")
        return
    try:
        inspect.signature(trainable).bind({})
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"{name_of(trainable)} cannot be called with a configuration: {error}", hint=hint, code="invalid-trainable"
        ) from error
    if inspect.iscoroutinefunction(inspect.unwrap(trainable)):
        hint = "pass a plain function that calls asyncio.run and tune.report(metrics)"
        message = f"{name_of(trainable)} is a coroutine function, which is not supported"
        raise BadValueError(message, hint=hint, code="invalid-trainable")
