"""Errors of arguments that are ValueErrors and TypeErrors too, for scripts that catch what Ray Tune raises.

UsageError
+-- BadValueError  also a ValueError    a value that makes no sense, or does not go with another one
+-- BadTypeError   also a TypeError     an argument that does not exist, an object of the wrong kind
NotFoundError
+-- MissingError   also a ValueError    a sweep or a policy that does not exist
PreconditionError
+-- MismatchError  also a ValueError    another trainable than the sweep's
"""

from __future__ import annotations

from windlass.core.errors import NotFoundError, PreconditionError, UsageError

__all__ = ["BadTypeError", "BadValueError", "MismatchError", "MissingError"]


class BadValueError(UsageError, ValueError):
    """A value is refused."""


class BadTypeError(UsageError, TypeError):
    """An unknown argument, or an object of the wrong kind, is refused."""


class MissingError(NotFoundError, ValueError):
    """Something that was named does not exist."""


class MismatchError(PreconditionError, ValueError):
    """Something is not what the sweep was begun with."""
