"""Errors of arguments that are also ValueErrors and TypeErrors, as Ray Tune raises.

UsageError
+-- BadValueError  also a ValueError    an invalid value, or one that does not fit another
+-- BadTypeError   also a TypeError     an unknown argument, or an object of the wrong kind
NotFoundError
+-- MissingError   also a ValueError    a sweep or a policy that does not exist
PreconditionError
+-- MismatchError  also a ValueError    another trainable than the sweep's
"""

from __future__ import annotations

from windlass.core.errors import NotFoundError, PreconditionError, UsageError

__all__ = ["BadTypeError", "BadValueError", "MismatchError", "MissingError"]


class BadValueError(UsageError, ValueError):
    """Invalid value."""


class BadTypeError(UsageError, TypeError):
    """Unknown argument, or object of the wrong kind."""


class MissingError(NotFoundError, ValueError):
    """Named object that does not exist."""


class MismatchError(PreconditionError, ValueError):
    """Object that differs from the one that the sweep was started with."""
