"""Errors about search spaces.

They are also ValueErrors, as scripts written for Ray Tune expect.
"""

from __future__ import annotations

from windlass.core.errors import UsageError

__all__ = ["RecursiveDependencyError", "SpaceError"]


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
