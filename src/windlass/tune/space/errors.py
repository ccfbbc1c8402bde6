"""Errors of search spaces. They are also ValueErrors, as scripts written for Ray Tune expect."""

from __future__ import annotations

from windlass.core.errors import UsageError

__all__ = ["RecursiveDependencyError", "SpaceError"]


class SpaceError(UsageError, ValueError):
    """Invalid search space or point of it; the message holds the user's value and its place."""

    default_code = "invalid-space"

    def at(self, name: str) -> SpaceError:
        """Return the error with the name of the parameter, unless it has one already."""
        if not name or self.message.startswith("`"):
            return self
        return type(self)(f"`{name}`: {self.message}", hint=self.hint, code=self.code)


class RecursiveDependencyError(SpaceError):
    """Values of a space depend on each other in a cycle; the message names them in order."""

    default_code = "invalid-space"
