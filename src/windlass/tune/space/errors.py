"""What can be wrong with a search space. These are ValueErrors too, as scripts written for Ray Tune expect."""

from __future__ import annotations

from windlass.core.errors import UsageError

__all__ = ["RecursiveDependencyError", "SpaceError"]


class SpaceError(UsageError, ValueError):
    """A search space, or a point of it, makes no sense; the message holds the user's value and its place."""

    default_code = "space-range"

    def at(self, name: str) -> SpaceError:
        """The same error, saying at which parameter; unchanged when it says so already."""
        if not name or self.message.startswith("`"):
            return self
        return type(self)(f"`{name}`: {self.message}", hint=self.hint, code=self.code)


class RecursiveDependencyError(SpaceError):
    """Values of a space depend on each other in a circle; the message names them in order."""

    default_code = "space-cycle"
