"""The source of the site: pages of the repository as they are, with the navigation and generated pages added."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.check_docs import FENCED, LINK
from scripts.public_surface import surface
from scripts.tree import ROOT, tracked_files
from scripts.website import command_reference, python_reference
from scripts.website.navigation import Entry, links_to_pages, sections, toctree

__all__ = ["add_navigation", "stage"]

FRONT = "README.md"
INDEX = "docs/README.md"
COMMANDS = "docs/reference/commands.md"
PYTHON = "docs/reference/python.md"
# Blocks that make docs runs hold files after `>`, which the lexer of consoles does not expect.
_CONSOLE = re.compile(r"^```console exec(?: train)?\n", re.MULTILINE)
_PAGES = re.compile(r"(README|CONTRIBUTING|CHANGELOG|changelog\.d/README|docs/.*|examples/[^/]+/README)\.md\Z")


def stage(folder: Path) -> list[str]:
    """Write every page, and the other files that pages link to, below `folder`; returns what is wrong."""
    pages = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in map(_relative, tracked_files())
        if _PAGES.match(path)
    }
    python, problems = python_reference.pages(surface().splitlines(), ROOT / "src")
    generated = {PYTHON: python, COMMANDS: command_reference.pages()}
    for parent, children in generated.items():
        pages[parent] += children.pop("")
        below = parent.removesuffix(".md")
        pages |= {f"{below}/{name}.md": text for name, text in children.items()}
        pages[parent] += toctree(Entry(title="", page=f"{below}/{name}") for name in children)
    for path, text in add_navigation(pages).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_CONSOLE.sub("```{code-block} console\n:force:\n\n", text), encoding="utf-8")
        _copy_linked_files(path, text, folder)
    return problems


def add_navigation(pages: Mapping[str, str]) -> dict[str, str]:
    """Return the pages with their place in the navigation.

    The front page gets the sections of docs/README.md, and the README of a folder, such as docs/decisions, the pages
    of that folder. Sphinx warns of every page that is in neither.
    """
    found = dict(pages)
    found[FRONT] += toctree([Entry(title="Documentation", page=INDEX.removesuffix(".md"))])
    for section in sections(pages[INDEX], INDEX):
        found[FRONT] += toctree(section.entries, caption=section.title)
    for path, text in pages.items():
        folder = path.removesuffix("README.md")
        if path not in (FRONT, INDEX) and path.startswith("docs/") and path != folder:
            own = [entry for entry in links_to_pages(text, path) if entry.page.startswith(folder)]
            found[path] += toctree(Entry(title="", page=entry.page) for entry in own)
    return found


def _copy_linked_files(page: str, text: str, folder: Path) -> None:
    """Copy what a page links to and is no page itself, such as errors.toml: readers of the site download it."""
    for target in LINK.findall(FENCED.sub("", text)):
        name = target.partition("#")[0]
        file = (ROOT / page).parent / name
        if name and not re.match(r"[a-z]+:", name) and not name.endswith(".md") and file.is_file():
            copy = folder / _relative(file.resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
