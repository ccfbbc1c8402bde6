"""Pages about the commands, written by the commands' own help through a formatter that writes Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

import click

from windlass.cli.catalogue import SECTIONS
from windlass.cli.program import windlass

__all__ = ["MarkdownFormatter", "pages"]


def pages() -> dict[str, str]:
    """Return a page for each verb, and under the empty name the table of all verbs."""
    found = {"": "\n".join(_overview())}
    context = click.Context(windlass, info_name="windlass", max_content_width=100)
    for entries in SECTIONS.values():
        for entry in entries:
            command = windlass.get_command(context, entry.name)
            assert command is not None  # holds for every entry of the table
            found[entry.name] = "\n".join(_page(command, context, entry.name, level=1))
    return found


def _overview() -> Iterator[str]:
    for title, entries in SECTIONS.items():
        yield from ("", f"## {title}", "", "| command | what it does |", "|---|---|")
        for entry in entries:
            yield f"| [`{entry.name}`](commands/{entry.name}.md) | {cell(entry.summary)} |"
    yield ""


def _page(command: click.Command, parent: click.Context, name: str, *, level: int) -> Iterator[str]:
    """Yield the section of a command, then those of the commands below it."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    formatter = MarkdownFormatter()
    command.format_help(context, formatter)
    yield from (f"{'#' * level} `{context.command_path}`", "", formatter.getvalue())
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            member = command.get_command(context, below)
            assert member is not None  # click lists what it has
            yield from _page(member, context, below, level=level + 1)


class MarkdownFormatter(click.HelpFormatter):
    """Formatter of help pages that writes Markdown; click and the verbs call it as they call the one for terminals."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage as a block of code."""
        self.write(f"```text\n{prog} {args}\n```\n\n")

    def write_heading(self, heading: str) -> None:
        """Write the title of a group of options as a line of its own."""
        self.write(f"**{heading}**\n\n")

    def write_paragraph(self) -> None:
        """Write an empty line."""
        self.write("\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; one that click does not wrap is a block of code, below its first line if that is a title."""
        for paragraph in text.split("\n\n"):
            lines = textwrap.dedent(paragraph).strip("\n").splitlines()
            if lines[:1] == ["\b"]:
                title = lines[1] if len(lines) > 2 and lines[1].endswith(":") else ""
                code = textwrap.dedent("\n".join(lines[2:] if title else lines[1:]))
                self.write(f"**{title.rstrip(':')}**\n\n" if title else "")
                self.write(f"```text\n{code}\n```\n\n")
            else:
                self.write("\n".join(plain(line.strip()) for line in lines) + "\n\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of definitions, such as options, as a table."""
        self.write("| | |\n|---|---|\n")
        self.write("".join(f"| {code(term)} | {cell(meaning)} |\n" for term, meaning in rows) + "\n")


def code(term: str) -> str:
    """Return a term as code in a table."""
    return "`" + term.strip().replace("|", "\\|") + "`"


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def plain(text: str) -> str:
    """Return a text in which nothing outside of code is HTML."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "\\<") for part in parts[::2]]
    return "`".join(parts)
