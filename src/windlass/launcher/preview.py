"""Preview of a plan: all errors are reported together, and a dirty tree is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from windlass.core.errors import Problem, SpecError, UnreachableError, WindlassError

__all__ = ["Preview"]

T = TypeVar("T")
_UNPINNED = ("dirty-tree", "no-commit")
"""Error codes that stop a launch but not a preview."""


@dataclass(slots=True)
class Preview:
    """Collector of the errors in `with preview:` blocks, until `check` raises them.

    Attributes:
        refusals: errors that a launch of this plan would raise.
        notes: facts that the plan could not determine.
    """

    refusals: list[WindlassError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _errors: list[WindlassError] = field(default_factory=list)

    def __enter__(self) -> None:
        """Start a block that may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Collect a WindlassError and suppress it."""
        if not isinstance(error, WindlassError):
            return False
        self._errors.append(error)
        return True

    def code(self, pin: Callable[[bool], T], *, is_given: bool) -> T:
        """Return the code's pin, `pin(False)`; if that is refused, return the pin of a snapshot, `pin(True)`.

        Args:
            is_given: whether the user chose how to pin a dirty tree.
        """
        try:
            return pin(False)
        except WindlassError as error:
            if is_given or error.code not in _UNPINNED:
                raise
            self.refusals.append(error)
            return pin(True)

    def image(self, pin: Callable[[], T], unknown: Callable[[], T | None]) -> T:
        """Return the image's pin; if the registry cannot be reached, return `unknown()` and add a note."""
        try:
            return pin()
        except UnreachableError as error:
            found = unknown()
            if found is None:
                raise
            self.notes.append(
                f"cannot get the digest of the image, so the plan of a launch will differ: {error.message}"
            )
            return found

    def check(self) -> None:
        """Raise the collected errors, if any; several are combined into one error.

        Raises:
            WindlassError: at least one error was collected.
        """
        if not self._errors:
            return
        if len(self._errors) == 1 and not self.refusals:
            raise self._errors[0]
        problems: list[Problem] = [each for error in (*self.refusals, *self._errors) for each in error.problems]
        raise SpecError(dict.fromkeys(problems)) from self._errors[0]

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes to show with the plan."""
        refused = (f"a launch would be refused: {error.problems[0].sentence}" for error in self.refusals)
        return (*refused, *self.notes)
