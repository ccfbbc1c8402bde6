"""Messages and hints for syntax errors reported by the YAML parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import yaml

__all__ = ["YamlMark", "explain_syntax"]

_INDENTATION = ("the indentation does not fit the lines above", "indent the keys of one mapping equally")
_TAB = ("a tab is used for indentation", "indent with spaces")
# Parts of the messages of libyaml and of PyYAML's pure parser; the first match is used.
_KNOWN = (
    ("found a tab character", *_TAB),
    (
        "mapping values are not allowed",
        "unexpected `:`: a key cannot be here",
        "check the indentation and the line above; put quotes around text that contains `: `",
    ),
    ("unexpected end of stream", "a quote is never closed", "add the closing quote"),
    (
        "expected ',' or",
        "a list `[...]` or a mapping `{...}` is never closed, or lacks a comma",
        "add the bracket or the comma",
    ),
    ("could not find expected ':'", "a key has no `:`", "write `key: value`"),
    ("sequence entries are not allowed", "a list cannot begin here", "put each item on its own line"),
    ("expected '-' indicator", *_INDENTATION),
    ("expected key", *_INDENTATION),
    ("block end", *_INDENTATION),
    ("node content", "a value is missing", "remove the mark, or put quotes around the text"),
    ("document start", "something follows the end of the document", "remove it"),
    ("unknown escape character", "unknown escape inside double quotes", "double the backslash, or use single quotes"),
    (
        "invalid Unicode character escape",
        "an escape sequence is half of a surrogate pair",
        "write the character itself",
    ),
)
_AFTER_QUOTE = ("text follows a closing quote", "put the whole text in quotes; inside '...' a quote is written twice")
# The position of the opening is more useful than the end of the file.
_OPEN = ("a quote is never closed", "a list `[...]`", "a key has no")


class YamlMark(Protocol):
    """Position in a text, as either of PyYAML's parsers reports it, counted from 0."""

    @property
    def line(self) -> int:
        """Return the line, counted from 0."""

    @property
    def column(self) -> int:
        """Return the column, counted from 0."""


def _shown(character: str) -> str:
    return "a backtick" if character == "`" else f"`{character}`"


def explain_syntax(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> tuple[str, str, YamlMark | None]:
    """Return the message, hint and position of a syntax error."""
    problem = " ".join((error.problem or "").split())
    mark: YamlMark | None = error.problem_mark or error.context_mark
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    column = mark.column if mark is not None else 0
    if "cannot start any token" in problem:
        is_tab = line.lstrip(" ").startswith("\t")
        message, hint = (
            _TAB
            if is_tab
            else (f"no value can begin with {_shown(line[column : column + 1])}", "put quotes around the text")
        )
        return message, hint, mark
    for part, message, hint in _KNOWN:
        if part in problem:
            if message == _INDENTATION[0] and line[:column].rstrip().endswith(("'", '"')):
                return *_AFTER_QUOTE, mark
            is_open = message.startswith(_OPEN) and error.context_mark is not None
            return message, hint, error.context_mark if is_open else mark
    return f"not YAML: {problem}", "", mark
