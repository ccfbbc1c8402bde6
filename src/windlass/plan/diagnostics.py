"""Problems with an experiment, collected while planning and reported together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windlass.config.path import join_path, split_path
from windlass.core.errors import Problem, SourcePlace, SpecError

__all__ = ["Diagnostics", "spec_error"]


def spec_error(message: str, code: str, hint: str) -> SpecError:
    """Return an error to which the caller adds where the setting was written (see `Diagnostics.take`)."""
    return SpecError([Problem(message, code, None, hint)])


class Diagnostics:
    """Collector of problems, which looks up where each setting was written.

    Args:
        origins: place by dotted path of a setting; a missing setting gets the place of its parent.
    """

    def __init__(self, origins: Mapping[str, SourcePlace] | None = None) -> None:
        self._origins = origins or {}
        self._problems: dict[Problem, None] = {}

    def add(self, path: str, message: str, code: str, hint: str = "") -> None:
        """Add a problem with the setting at `path`, unless it was added before."""
        self._problems[Problem(message, code, self._place(path), hint)] = None

    def take(self, error: SpecError, path: str) -> None:
        """Add the problems in an error, and where their settings were written."""
        for problem in error.problems:
            self._problems[replace(problem, place=problem.place or self._place(path))] = None

    def raise_all(self) -> None:
        """Raise SpecError if there are any problems."""
        if self._problems:
            raise SpecError(self._problems)

    def _place(self, path: str) -> SourcePlace | None:
        parts = split_path(path) if path else ()
        for length in range(len(parts), -1, -1):
            place = self._origins.get(join_path(parts[:length]))
            if place is not None:
                return place
        return None
