"""Just enough of the POSIX shell grammar to insert a value safely and to find the commands of a line.

Source: POSIX.1-2024, Shell Command Language, sections 2.2 (quoting) and 2.3 (token recognition). Here-documents and
backquotes are noticed, not understood: a value that would need quotes inside them is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Quote", "ShellScanner", "Word", "is_assignment", "plain_argv", "quote_value", "simple_commands"]

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_SPECIAL = frozenset("*?[]~(){}<>!`$#;&|\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


class Quote(Enum):
    """How the shell reads the next character."""

    BARE = "bare"
    SINGLE = "single"
    DOUBLE = "double"


class ShellScanner:
    """Follows quotes, substitutions and comments through a line, one character at a time.

    Attributes:
        is_comment: the last character belongs to a comment.
        is_opaque: there was a backquote or a here-document; what follows is not understood.
    """

    def __init__(self) -> None:
        self.is_comment = False
        self.is_opaque = False
        self._stack: list[str] = []
        self._previous = " "
        self._is_escaped = False

    @property
    def quote(self) -> Quote:
        """The quoting at this point."""
        top = self._stack[-1] if self._stack else ""
        return {"'": Quote.SINGLE, '"': Quote.DOUBLE, '"{': Quote.DOUBLE}.get(top, Quote.BARE)

    @property
    def is_top(self) -> bool:
        """Whether this point is in no quotes, substitution, escape or comment."""
        return not (self._stack or self._is_escaped or self.is_comment)

    @property
    def is_closed(self) -> bool:
        """Whether every quote and substitution has its end."""
        return not (self._stack or self._is_escaped)

    def feed(self, text: str) -> None:
        """Read on."""
        for character in text:
            was_escaped, self._is_escaped = self._is_escaped, False
            if not was_escaped:
                self._step(character)
            self._previous = "x" if was_escaped else character

    def feed_value(self) -> None:
        """Pass over an inserted value, whatever it is."""
        self._previous, self._is_escaped = "x", False

    def _step(self, character: str) -> None:
        top = self._stack[-1] if self._stack else ""
        if self.is_comment:
            self.is_comment = character != "\n"
        elif top == "'":
            if character == "'":
                self._stack.pop()
        elif character == "\\":
            self._is_escaped = True
        elif self._previous == "$" and character in "({":
            self._stack.append('"{' if character == "{" and self.quote is Quote.DOUBLE else character)
        elif character == "`":
            self.is_opaque = True
        elif character == '"':
            self._stack.pop() if top == '"' else self._stack.append('"')
        elif (top, character) in (("(", ")"), ("{", "}"), ('"{', "}")):
            self._stack.pop()
        elif self.quote is Quote.BARE:
            self._step_bare(top, character)

    def _step_bare(self, top: str, character: str) -> None:
        if character == "'" or (character == "(" and top == "("):
            self._stack.append(character)
        elif self._previous + character == "<<":
            self.is_opaque = True
        elif character == "#" and top != "{" and self._previous in " \t\n;&|(":
            self.is_comment = True


def quote_value(value: str, quote: Quote) -> str:
    """`value` as the shell must see it at a place with this quoting; unchanged where it needs no quotes."""
    if _SAFE.match(value):
        return value
    if quote is Quote.SINGLE:
        return value.replace("'", "'\\''")
    if quote is Quote.DOUBLE:
        return re.sub(r'([\\"$`])', r"\\\1", value)
    return shlex.quote(value)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: as written, without its quotes, and where it stands."""

    text: str
    value: str
    start: int = 0
    end: int = 0


def simple_commands(line: str) -> tuple[tuple[Word, ...], ...]:
    """The words of each simple command of a line, cut at `;`, `&`, `|`, parentheses and line ends.

    Raises:
        ValueError: a quote or a substitution is not closed, or there is a backquote or a here-document.
    """
    commands: list[tuple[Word, ...]] = []
    words: list[Word] = []
    for start, end, is_word in _lex(line):
        if is_word:
            words.append(Word(line[start:end], _unquote(line[start:end]), start, end))
        elif words:
            commands.append(tuple(words))
            words = []
    return (*commands, tuple(words)) if words else tuple(commands)


def _unquote(text: str) -> str:
    try:
        return " ".join(shlex.split(text))
    except ValueError:
        return text


def _lex(line: str) -> Iterator[tuple[int, int, bool]]:
    scanner, begin = ShellScanner(), -1
    for index, character in enumerate(line + "\n"):
        is_cut = _is_operator(line, index, scanner) or (scanner.is_comment and character == "\n")
        is_gap = scanner.is_top and (character in " \t" or line.startswith("\\\n", index))
        is_gap = is_gap or (line.startswith("\\\n", index - 1) and begin < 0)
        scanner.feed(character)
        if not (is_cut or is_gap or scanner.is_comment):
            begin = index if begin < 0 else begin
            continue
        if begin >= 0:
            yield begin, index, True
        begin = -1
        if is_cut:
            yield index, index + 1, False
    if begin >= 0 or not scanner.is_closed:
        raise ValueError("a quote or `$(` has no end")
    if scanner.is_opaque:
        raise ValueError("it has a backquote or a here-document")


def _is_operator(line: str, index: int, scanner: ShellScanner) -> bool:
    if not scanner.is_top or (line + "\n")[index] not in ";&|()\n":
        return False
    before, after = line[max(0, index - 1) : index], line[index + 1 : index + 2]
    is_redirect = line[index : index + 1] == "&" and ((before and before in "<>") or after == ">")
    is_substitution = line[index : index + 1] == "(" and before == "$"
    return not (is_redirect or is_substitution)


def is_assignment(word: str) -> bool:
    """Whether a word before a command sets a variable for it: `OMP_NUM_THREADS=8`."""
    return _ASSIGNMENT.match(word) is not None


def plain_argv(line: str, literals: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments of a line that needs no shell, or None: nothing in it is expanded, redirected or chained.

    Args:
        line: one command; tokens in it are plain text.
        literals: the same line without its tokens.
    """
    scanner = ShellScanner()
    for literal in literals:
        for character in literal:
            quote = scanner.quote
            if quote is Quote.BARE and (character in _SPECIAL or character == "\\"):
                return None
            if quote is Quote.DOUBLE and character in "$`\\":
                return None
            scanner.feed(character)
        scanner.feed_value()
    return tuple(shlex.split(line))
