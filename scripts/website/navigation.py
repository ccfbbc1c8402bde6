"""The navigation of the site, read from docs/README.md: its sections are the captions, its links the entries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath

__all__ = ["Entry", "Section", "links_to_pages", "sections", "toctree"]

_SECTION = re.compile(r"^## +(?P<title>.+?)\s*$(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+\.md)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Entry:
    """Page in the navigation: its title and its path without `.md`."""

    title: str
    page: str


@dataclass(frozen=True)
class Section:
    """Heading of the index and the pages that are listed below it."""

    title: str
    entries: tuple[Entry, ...]


def sections(index: str, path: str) -> list[Section]:
    """Return the sections of an index page; a page that two sections list belongs to the first."""
    seen: set[str] = set()
    found = []
    for match in _SECTION.finditer(index):
        entries = tuple(entry for entry in links_to_pages(match["body"], path) if entry.page not in seen)
        seen |= {entry.page for entry in entries}
        if entries:
            found.append(Section(title=match["title"], entries=entries))
    return found


def links_to_pages(text: str, path: str) -> Iterator[Entry]:
    """Yield each page that a text links to, once; `path` is the page that holds the text."""
    seen: set[str] = set()
    for match in _LINK.finditer(text):
        target = normpath(PurePosixPath(path).parent / match["target"])
        if target not in seen and ":" not in match["target"]:
            seen.add(target)
            yield Entry(title=match["text"].replace("`", ""), page=target.removesuffix(".md"))


def toctree(entries: Iterable[Entry], caption: str = "") -> str:
    """Return the directive that puts pages into the navigation without showing a list on the page itself."""
    lines = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    lines += [f"{entry.title} </{entry.page}>" if entry.title else f"/{entry.page}" for entry in entries]
    return "\n".join([*lines, "```", ""])
