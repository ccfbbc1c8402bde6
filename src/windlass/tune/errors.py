"""Errors about arguments that are also ValueErrors or TypeErrors, as Ray Tune raises.

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

__all__ = ["BadTypeError", "BadValueError", "MismatchError", "MissingError", "RecursiveDependencyError", "SpaceError"]


class BadValueError(UsageError, ValueError):
    """Error for an invalid value."""


class BadTypeError(UsageError, TypeError):
    """Error for an unknown argument, or an object of the wrong kind."""


class MissingError(NotFoundError, ValueError):
    """Error for a name under which nothing exists."""


class MismatchError(PreconditionError, ValueError):
    """Error for an object that differs from the one with which the sweep was started."""


class SpaceError(UsageError, ValueError):
    """Error for an invalid search space or point; the message has the user's value and the parameter."""

    default_code = "invalid-space"

    def at(self, name: str) -> SpaceError:
        """Return the error with the name of the parameter added, unless it already has one."""
        if not name or self.message.startswith("`"):
            return self
        return type(self)(f"`{name}`: {self.message}", hint=self.hint, code=self.code)


class RecursiveDependencyError(SpaceError):
    """Error for values that depend on each other in a cycle, which the message names in order."""

    default_code = "invalid-space"
