"""The pages of docs/errors: in a wheel they lie in this package, in a checkout where they are written."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

__all__ = ["OTHER", "codes", "groups", "page_of", "search", "summary_of"]

OTHER = "Other"
"""The group of codes that no group names."""


_NOT_PAGES = frozenset({"README", "TEMPLATE"})


@cache
def codes() -> tuple[str, ...]:
    """Every code that has a page, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.md") if path.stem not in _NOT_PAGES))


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Every code by its group."""
    listed = tomllib.loads(Path(__file__).with_name("error_groups.toml").read_text(encoding="utf-8"))
    found = {group: tuple(code for code in listed[group] if code in codes()) for group in listed}
    grouped = {code for members in found.values() for code in members}
    return {**found, OTHER: tuple(code for code in codes() if code not in grouped)}


def search(words: str) -> tuple[str, ...]:
    """Codes whose page, or name, has every one of the words; case does not matter."""
    wanted = words.lower().split()
    pages = {code: f"{code} {code.replace('-', ' ')} {page_of(code)}".lower() for code in codes()}
    return tuple(code for code, page in pages.items() if all(word in page for word in wanted))


def page_of(code: str) -> str:
    """The page of a code, Markdown."""
    return (_folder() / f"{code}.md").read_text(encoding="utf-8")


def summary_of(code: str) -> str:
    """The first sentence of what a code means."""
    _, _, meaning = page_of(code).partition("## What it means")
    text = " ".join(meaning.partition("## What to do")[0].split())
    head, stop, _ = text.partition(". ")
    return head + "." if stop else text


def _folder() -> Path:
    shipped = Path(__file__).parent / "errors"
    return shipped if shipped.is_dir() else Path(__file__).parents[3] / "docs" / "errors"
