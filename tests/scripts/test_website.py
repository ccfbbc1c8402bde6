"""The site of the documentation: its navigation, its references, and what fails the build."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from scripts.tree import ROOT
from scripts.website import command_reference, python_reference
from scripts.website.__main__ import build
from scripts.website.built_pages import check_site
from scripts.website.navigation import Entry, Section, links_to_pages, sections
from scripts.website.staging import add_navigation
from windlass.cli.program import windlass

INDEX = """
Start with the [README](../README.md).

## Guides: one task, one page

* [Adopt it](guides/adopt.md): in a repository. [`mason`](mason.md#options), [code](../src/x.py), [web](https://example.org/a.md)

## Behind it

* [Adopt it](guides/adopt.md) again, [Decisions](decisions/README.md)
"""


def test_the_navigation_is_the_index() -> None:
    assert sections(INDEX, "docs/README.md") == [
        Section("Guides: one task, one page", (Entry("Adopt it", "docs/guides/adopt"), Entry("mason", "docs/mason"))),
        Section("Behind it", (Entry("Decisions", "docs/decisions/README"),)),
    ]


def test_each_index_page_gets_its_own_pages() -> None:
    pages = {
        "README.md": "# Front\n",
        "docs/README.md": INDEX,
        "docs/decisions/README.md": "[one](0001-one.md), [other](../mason.md)\n",
    }
    found = add_navigation(pages)
    assert (
        "caption: Guides: one task, one page\n\nAdopt it </docs/guides/adopt>\nmason </docs/mason>\n"
        in found["README.md"]
    )
    assert found["docs/README.md"] == INDEX
    assert found["docs/decisions/README.md"].endswith("```{toctree}\n:hidden:\n\n/docs/decisions/0001-one\n```\n")


def test_the_index_of_this_repository_lists_every_section() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {entry.page for section in sections(index, "docs/README.md") for entry in section.entries}
    assert {
        "docs/reference/commands",
        "docs/reference/python",
        "docs/decisions/README",
        "docs/evidence/README",
    } <= listed
    assert [
        entry for entry in links_to_pages(index, "docs/README.md") if not (ROOT / f"{entry.page}.md").is_file()
    ] == []


# ------------------------------------------------------------------------------------------------------ references


def test_the_command_reference_has_every_command_and_option() -> None:
    found = command_reference.pages()
    text = "\n".join(found.values())
    for verb in windlass.list_commands(click.Context(windlass)):
        assert f"\n# `windlass {verb}`\n" in "\n" + found[verb]
        assert f"| [`{verb}`](commands/{verb}.md) |" in found[""]
    assert "\n## `windlass site add`\n" in text
    assert "| `--on SITE[/PARTITION]` | Where to run; overrides the file's `where`. |" in found["launch"]
    assert (
        "| `--template [hello\\|torch-ddp\\|empty]` | Template.  [default: hello] |".replace("  [", " [")
        in found["init"]
    )
    assert "**Examples**\n\n```text\nwindlass init hello && cd hello" in found["init"]
    assert "**Options of mason**" in found["mason"]
    assert "| `--gpus " in found["gantry"]
    assert text.count("| `-h, --help` |") > 50
    assert "\b" not in text


SOURCE = '''"""A package."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

__all__ = ["LIMIT", "Colour", "Point", "Sweep", "again", "move"]

LIMIT: int = 3
"""The most of it."""


class Colour(enum.Enum):
    """A colour."""

    RED = "red"


@dataclass
class Point:
    """A place.

    Attributes:
        x, y: where it is.
    """

    x: int
    y: int = 0
    name: Annotated[str, Doc("Its name, `a|b` <c>.")] = ""

    @property
    def norm(self) -> float:
        """Distance."""
        return 0.0

    def _hidden(self) -> None: ...


class Sweep:
    """A search.

    Args:
        start, end: the points.
    """

    def __init__(self, start: Point, end: Point | None = None, *, log: Callable[[str], None] = lambda line: None) -> None: ...

    @classmethod
    def restore(cls, path: str) -> Sweep:
        """Restore it."""


def move(point: Point, by: int = 1) -> tuple[Point, ...]:
    """Move a point by 1 < n steps.

        move(Point(1))

    Args:
        point: what moves,
            and how.

    Returns:
        all of them: the newest first.

    Raises:
        ValueError: it cannot.
    """


again = move
'''


@pytest.fixture
def reference(tmp_path: Path) -> dict[str, str]:
    """The pages of a package with one module below it."""
    package = tmp_path / "thing"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "inner" / "__init__.py").write_text('"""Inner."""\n\nfrom thing import Point\n\n__all__ = ["Point"]\n')
    names = [f"thing.{name}" for name in ("LIMIT", "Colour", "Point", "Sweep", "move")] + ["thing.inner.Point"]
    found, problems = python_reference.pages(names, tmp_path)
    assert problems == []
    return found


def test_functions_and_classes_have_signatures_with_public_types(reference: dict[str, str]) -> None:
    page = reference["thing"]
    assert "{py:function} move(point: thing.Point, by: int = 1) -> tuple[thing.Point, ...]\n" in page
    signature = "start: thing.Point, end: thing.Point | None = None, *, log: Callable[[str], None] = lambda line: None"
    assert f"{{py:class}} Sweep({signature})\n" in page
    assert "{py:method} restore(path: str) -> thing.Sweep\n:classmethod:\n" in page
    assert "_hidden" not in page


def test_docstrings_become_markdown(reference: dict[str, str]) -> None:
    page = reference["thing"]
    assert "Move a point by 1 \\< n steps.\n\n    move(Point(1))\n" in page
    assert "**Arguments**\n\n* `point`: what moves,\n  and how.\n" in page
    assert "* `start`, `end`: the points.\n" in page
    assert "**Returns**\n\n* all of them: the newest first.\n" in page
    assert "**Raises**\n\n* `ValueError`: it cannot.\n" in page


def test_fields_members_and_constants_are_described(reference: dict[str, str]) -> None:
    page = reference["thing"]
    assert "{py:attribute} y\n:type: int\n:value: 0\n\nwhere it is.\n" in page
    assert "{py:attribute} name\n:type: str\n:value: ''\n\nIts name, `a|b` \\<c>.\n" in page
    assert "{py:property} norm\n:type: float\n\nDistance.\n" in page
    assert "{py:attribute} RED\n:value: 'red'\n" in page
    assert "{py:data} LIMIT\n:type: int\n:value: 3\n\nThe most of it.\n" in page


def test_a_name_that_two_packages_offer_is_described_once(reference: dict[str, str]) -> None:
    assert "* `Point`: the same as {py:obj}`thing.Point`" in reference["thing.inner"]
    assert "| [`thing.inner`](python/thing.inner.md) | Inner. |" in reference[""]


# ----------------------------------------------------------------------------------------------------------- build


def write(folder: Path, **pages: str) -> Path:
    folder.mkdir()
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    return folder


def test_a_dead_link_a_bad_anchor_and_a_page_that_nothing_lists_fail_the_build(tmp_path: Path) -> None:
    source = write(
        tmp_path / "source",
        README="# Front\n\n[a](gone.md) [b](page.md#gone)\n\n```{toctree}\n\npage\nmissing\n```\n",
        page="# Page\n",
        lost="# Lost\n",
    )
    problems = "\n".join(build(source, tmp_path / "site", tmp_path / "doctrees"))
    for problem in (
        "'gone.md'",
        "'gone'",
        "nonexisting document 'missing'",
        "lost.md: WARNING: document isn't included",
    ):
        assert problem in problems, problems
    assert not (tmp_path / "site" / "index.html").exists()


def test_a_whole_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    front = "# Front\n\n[a](page.md#part) [b](https://example.org/)\n\n```{toctree}\n\npage\n```\n"
    source = write(tmp_path / "source", README=front, page="# Page\n\n## Part\n\n```python\nx = 1\n```\n")
    site = tmp_path / "site"
    assert build(source, site, tmp_path / "doctrees") == []
    assert (site / "index.html").read_text() == (site / "README.html").read_text()
    assert check_site(site) == []


def test_requests_to_other_hosts_and_dead_links_of_built_pages_are_found(tmp_path: Path) -> None:
    head = "<link rel='stylesheet' href='https://cdn.example.org/a.css'><script src='//cdn.example.org/b.js'></script>"
    style = "<style>@import 'https://fonts.example.org/c.css'; p { background: url(d.png) }</style>"
    body = (
        "<a href='https://example.org'>x</a><a href='gone.html'>y</a><a href='#top'>z</a><p id='here'><a href='#here'>"
    )
    (tmp_path / "index.html").write_text(f"<html><head>{head}{style}</head><body>{body}</body></html>")
    (tmp_path / "e.css").write_text('@font-face { src: url("https://fonts.example.org/f.woff2") }')
    (tmp_path / "g.js").write_text("// https://example.org/licence\nfetch('https://api.example.org/h')")
    assert check_site(tmp_path) == [
        "index.html: fetches https://cdn.example.org/a.css",
        "index.html: fetches //cdn.example.org/b.js",
        "index.html: fetches https://fonts.example.org/c.css",
        "index.html: dead link to gone.html",
        "index.html: no anchor for #top",
        "e.css: fetches https://fonts.example.org/f.woff2",
        "g.js: fetches https://api.example.org/h",
    ]
