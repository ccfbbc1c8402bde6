"""Argument-name checking: an unknown name raises an error that suggests the nearest known one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from windlass.core.names import nearest
from windlass.tune.errors import BadTypeError

__all__ = ["check_known", "refuses_unknown"]

T = TypeVar("T")


def refuses_unknown(cls: type[T]) -> type[T]:
    """Make a class reject unknown arguments with a `UsageError` instead of a `TypeError`."""
    plain: Callable[..., None] = cls.__init__
    known = [name for name in inspect.signature(plain).parameters if name != "self"]

    @functools.wraps(plain)
    def checked(self: T, *args: Any, **arguments: Any) -> None:
        check_known(cls.__name__, arguments, known)
        plain(self, *args, **arguments)

    cls.__init__ = checked  # type: ignore[method-assign, assignment]
    return cls


def check_known(callee: str, arguments: dict[str, Any], known: list[str]) -> None:
    """Check that all names in `arguments` are in `known`.

    Raises:
        UsageError: a name is unknown; the hint has the nearest known name, or all of them.
    """
    for name in arguments:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean `{near}`?" if near else f"it takes {', '.join(known)}"
            raise BadTypeError(f"{callee} has no argument `{name}`", hint=hint, code="unknown-option")
