"""Differences between two configurations, by path."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from windlass.config.encode import to_data
from windlass.config.path import join_path
from windlass.core.dataclass import dataclass

__all__ = ["ABSENT", "Absent", "Change", "diff"]


class Absent(enum.Enum):
    """Marker for a value that does not exist on one side of a change (`null` is a value)."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Change:
    """Changed value at a path; both sides are plain data."""

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        if self.before is ABSENT:
            return f"+ {self.path}: {self.after!r}"
        if self.after is ABSENT:
            return f"- {self.path}: {self.before!r}"
        return f"~ {self.path}: {self.before!r} -> {self.after!r}"


def diff(before: object, after: object) -> list[Change]:
    """Return all differences between two dataclass values, in the order of `after`."""
    first = _leaves(to_data(before, keep_defaults=True))
    second = _leaves(to_data(after, keep_defaults=True))
    changes = [
        Change(path, first.get(path, ABSENT), value)
        for path, value in second.items()
        if path not in first or not _equal(first[path], value)
    ]
    changes.extend(Change(path, value, ABSENT) for path, value in first.items() if path not in second)
    return changes


def _equal(first: object, second: object) -> bool:
    # By repr, so that at any depth 1, 1.0 and true differ, and NaN equals itself.
    return repr(first) == repr(second)


def _leaves(data: Mapping[str, object], path: tuple[str, ...] = ()) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        inner = (*path, key)
        if isinstance(value, Mapping) and value:
            found.update(_leaves(value, inner))
        else:
            found[join_path(inner)] = value
    return found
