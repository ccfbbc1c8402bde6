"""A plan that is only looked at: it goes on after an error, reports all of them together, and plans a dirty tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from windlass.core.errors import Problem, SpecError, UnreachableError, WindlassError

__all__ = ["Preview"]

T = TypeVar("T")
_UNPINNED = ("dirty-tree", "no-commits", "not-a-repository")
"""What a launch refuses and a plan does not mind: the tree as it is can be looked at."""


@dataclass(slots=True)
class Preview:
    """Keeps the errors of `with preview:` blocks until `check`.

    Attributes:
        refusals: why a launch would be refused although there is a plan.
        notes: what the plan does not know.
    """

    refusals: list[WindlassError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _errors: list[WindlassError] = field(default_factory=list)

    def __enter__(self) -> None:
        """Begin a part that may fail."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Keep an error, and go on."""
        if not isinstance(error, WindlassError):
            return False
        self._errors.append(error)
        return True

    def code(self, pin: Callable[[bool], T], *, is_given: bool) -> T:
        """The pin of the code: `pin(False)`, or of a tree that a launch refuses the snapshot of it, `pin(True)`.

        Args:
            is_given: whether the person said how to pin a dirty tree.
        """
        try:
            return pin(False)
        except WindlassError as error:
            if is_given or error.code not in _UNPINNED:
                raise
            self.refusals.append(error)
            return pin(True)

    def image(self, pin: Callable[[], T], unknown: Callable[[], T | None]) -> T:
        """The pin of the image; where its registry cannot be reached, `unknown()` and a note, if there is such a pin."""
        try:
            return pin()
        except UnreachableError as error:
            found = unknown()
            if found is None:
                raise
            self.notes.append(
                f"the digest of the image is not known, so the plan is another in a launch: {error.message}"
            )
            return found

    def check(self) -> None:
        """Raise what was kept: a single error as it is, several as one that holds the problems of all.

        Raises:
            WindlassError: something was refused.
        """
        if not self._errors:
            return
        if len(self._errors) == 1 and not self.refusals:
            raise self._errors[0]
        problems: list[Problem] = [each for error in (*self.refusals, *self._errors) for each in error.problems]
        raise SpecError(dict.fromkeys(problems)) from self._errors[0]

    def told(self) -> tuple[str, ...]:
        """What to say with the plan."""
        refused = (f"a launch is refused: {error.problems[0].sentence}" for error in self.refusals)
        return (*refused, *self.notes)
