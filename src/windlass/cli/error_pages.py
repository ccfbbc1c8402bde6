"""The pages of docs/errors: in a wheel they lie in this package, in a checkout where they are written."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["codes", "page_of", "summary_of"]

_NOT_PAGES = frozenset({"README", "TEMPLATE"})


@cache
def codes() -> tuple[str, ...]:
    """Every code that has a page, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.md") if path.stem not in _NOT_PAGES))


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
