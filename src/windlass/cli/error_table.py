"""Table of error codes, docs/errors.toml; the wheel ships it in this package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["GROUPS", "ErrorCode", "Table", "codes", "groups", "nearest_codes", "parse", "search"]

GROUPS = "groups"
"""Name of the TOML table with the groups' titles; every other table is a group."""

Table = Mapping[str, Mapping[str, Any]]
"""Parsed TOML: group to code to fields, and group to title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCode:
    """Meaning and remedy of an error code.

    Args:
        group: key of its group, such as `sweeps`.
        meaning: the problem, and why windlass stopped.
        remedy: what to type or change.
        more: longer text, Markdown; usually empty.
    """

    code: str
    group: str
    meaning: str
    remedy: str
    more: str = ""

    @property
    def summary(self) -> str:
        """Return the first sentence of the meaning."""
        head, stop, _ = self.meaning.partition(". ")
        return head + "." if stop else self.meaning


@cache
def codes() -> dict[str, ErrorCode]:
    """Return every code, in the order of the table."""
    return parse(_table())


@cache
def groups() -> dict[str, str]:
    """Return the title of each group by its key."""
    return dict(_table()[GROUPS])


def parse(table: Table) -> dict[str, ErrorCode]:
    """Return the codes in a parsed TOML table."""
    return {
        code: ErrorCode(code=code, group=group, **fields)
        for group, members in table.items()
        if group != GROUPS
        for code, fields in members.items()
    }


def search(words: str) -> tuple[ErrorCode, ...]:
    """Return the codes whose name or text contains every word, ignoring case."""
    wanted = words.lower().split()
    return tuple(entry for entry in codes().values() if all(word in _searched(entry) for word in wanted))


def nearest_codes(word: str, limit: int = 3) -> list[str]:
    """Return the codes closest to `word`, best match first; empty if none is close."""
    import difflib  # lazy: only for errors

    return difflib.get_close_matches(word, [*codes()], n=limit, cutoff=0.75)


def _searched(entry: ErrorCode) -> str:
    words = entry.code.replace("-", " ")
    return f"{entry.code} {words} {entry.meaning} {entry.remedy} {entry.more}".lower()


@cache
def _table() -> Table:
    shipped = Path(__file__).with_name("errors.toml")
    path = shipped if shipped.is_file() else Path(__file__).parents[3] / "docs" / "errors.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
