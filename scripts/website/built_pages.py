"""Checks of the built site: every link leads to a page and an anchor of the site, and no page loads from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["check_site"]

# What a browser fetches by itself when it shows a page; `a href` is not among them.
_FETCHED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
_ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"(?:@import\s+|url\(\s*)[\"']?(?P<target>(?:[a-z]+:)?//[^\"')\s]+)", re.IGNORECASE)
_IN_SCRIPT = re.compile(
    r"(?:fetch|import|importScripts|open|\.src\s*=|\.href\s*=)\s*\(?\s*[\"'`](?P<target>(?:https?:)?//[^\"'`]+)"
)
_WRITTEN_BY_SPHINX = ("genindex.html", "search.html", "py-modindex.html")


class _Page(HTMLParser):
    """Anchors of a page, its links, what it fetches, and the text of its styles and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.embedded: list[str] = []
        self._is_embedded = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names, leads to or fetches."""
        values = {name: value or "" for name, value in attrs}
        self._is_embedded = tag in ("style", "script")
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if _FETCHED.get(tag) in values and values.get("rel") not in ("canonical", "alternate"):
            self.fetched.append(values[_FETCHED[tag]])
        self.fetched += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        self.embedded.append(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        """Note the text of a style or a script."""
        if self._is_embedded:
            self.embedded.append(data)

    def handle_endtag(self, tag: str) -> None:
        """End a style or a script."""
        self._is_embedded = False


def check_site(site: Path) -> list[str]:
    """Return dead links, missing anchors and requests to other hosts, one a line."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        problems += [f"{name}: fetches {target}" for target in dict.fromkeys(_requests(page))]
        for link in page.links:
            problem = _dead(link, path, pages)
            problems += [f"{name}: {problem}"] if problem else []
    for pattern, texts in ((_IN_STYLE, "*.css"), (_IN_SCRIPT, "*.js")):
        for path in sorted(site.rglob(texts)):
            targets = [match["target"] for match in pattern.finditer(path.read_text(encoding="utf-8"))]
            problems += [f"{path.relative_to(site).as_posix()}: fetches {target}" for target in targets]
    return problems


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _requests(page: _Page) -> Iterator[str]:
    yield from (target for target in page.fetched if _ELSEWHERE.match(target))
    for text in page.embedded:
        for pattern in (_IN_STYLE, _IN_SCRIPT):
            yield from (match["target"] for match in pattern.finditer(text))


def _dead(link: str, path: Path, pages: dict[Path, _Page]) -> str:
    """Return what is wrong with a link within the site; empty if nothing is, or it leads elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return f"dead link to {link}"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and target.name not in _WRITTEN_BY_SPHINX and anchor not in pages[target].anchors:
        return f"no anchor for {link}"
    return ""
