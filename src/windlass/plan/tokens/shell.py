"""Subset of the POSIX shell grammar, for inserting values safely and finding commands.

Source: POSIX.1-2024, Shell Command Language, sections 2.2 (quoting) and 2.3 (token recognition). Here-documents,
backquotes, arithmetic and syntax that shells interpret differently are detected but not parsed: `ShellScanner.hazard`
reports them, and a value that would need quotes there is refused. Text that a command evaluates itself (`eval`,
`sh -c`, `let`) is not covered: such a line must not use the value as code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from enum import Enum

from windlass.core.dataclass import dataclass

__all__ = ["Quote", "ShellScanner", "Word", "is_assignment", "plain_argv", "quote_value", "simple_commands"]

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_SPECIAL = frozenset("*?[]~(){}<>!`$#;&|\n")
_TOKEN_ENDS = ("$(", *" \t\n;&|()<>")
_OPENED_BY = {")": ("$(", "(", "(("), "}": ("{", '"{')}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


class Quote(Enum):
    """Quoting state that applies to the next character."""

    BARE = "bare"
    SINGLE = "single"
    DOUBLE = "double"


class ShellScanner:
    """Scanner that tracks quotes, substitutions and comments in a line, character by character.

    Attributes:
        is_comment: the last character belongs to a comment.
        is_opaque: there was a backquote or a here-document; the following text is not parsed.
        is_escaped: the last character is a backslash that escapes the next one.
    """

    def __init__(self) -> None:
        self.is_comment = False
        self.is_opaque = False
        self.is_escaped = False
        self._stack: list[str] = []  # of ' " $' $( ( (( { and "{, which is ${ in double quotes
        self._previous = " "
        self._word = ""
        self._num_subscripts = 0
        self._doubt = ""

    @property
    def quote(self) -> Quote:
        """Return the quoting state at this point."""
        return {"'": Quote.SINGLE, "$'": Quote.SINGLE, '"': Quote.DOUBLE, '"{': Quote.DOUBLE}.get(self._top, Quote.BARE)

    @property
    def hazard(self) -> str:
        """Return why quotes would not protect a value here; empty if they would."""
        if self.is_opaque or self._doubt:
            return self._doubt or "there is a backquote or a here-document before it"
        if self.is_comment:
            return "it is in a comment"
        names = {"((": "`$((...))`", "$'": "`$'...'`", "{": "a `${...}` of the shell", '"{': "a `${...}` of the shell"}
        found = next((names[entry] for entry in self._stack if entry in names), "")
        if not found and self._num_subscripts:
            found = "a subscript `name[...]`"
        return f"it is in {found}" if found else ""

    @property
    def is_top(self) -> bool:
        """Return whether this point is outside quotes, substitutions, escapes and comments."""
        return not (self._stack or self.is_escaped or self.is_comment)

    @property
    def is_closed(self) -> bool:
        """Return whether every quote and substitution is closed."""
        return not (self._stack or self.is_escaped)

    @property
    def _top(self) -> str:
        return self._stack[-1] if self._stack else ""

    def feed(self, text: str) -> None:
        """Scan more characters."""
        for character in text:
            if not self.is_escaped:
                self._step(character)
                continue
            self.is_escaped = False
            if character != "\n":
                self._previous, self._word = "x", ""
            elif self._previous in (
                "$",
                "$$",
                "$(",
                "<",
                "(",
                "[",
            ):  # a continued line reads as if backslash and newline were absent
                self._doubt = self._doubt or "there is a line continued in the middle of an operator before it"

    def feed_value(self) -> None:
        """Account for an inserted value without scanning it."""
        self._previous, self._word, self.is_escaped = "x", "", False

    def _step(self, character: str) -> None:
        top, previous, self._previous = self._top, self._previous, character
        if self.is_comment:
            self.is_comment = character != "\n"
        elif top in ("'", "$'"):
            if character == "'":
                self._stack.pop()
            elif top == "$'" and character == "\\":  # `$'a\'` ends here in one shell and continues in another
                self._doubt = self._doubt or "there is a backslash in `$'...'` before it"
        elif character == "\\":
            self.is_escaped, self._previous = True, previous
            self._doubt_quotes(top)
        elif (previous == "$" and character in "({[$") or (previous == "$$" and character == "{"):
            self._step_dollar(character)
        elif character == "`":
            self.is_opaque = True
        elif character == '"':
            self._doubt_quotes(top)
            self._stack.pop() if top == '"' else self._stack.append('"')
        elif character in ")}" and top in _OPENED_BY.get(character, ()):
            self._stack.pop()
            self._previous = character if top == "(" else "x"
        elif self.quote is Quote.BARE:
            self._step_bare(top, previous, character)
        elif character == "'":
            self._doubt_quotes(top)

    def _step_dollar(self, character: str) -> None:
        """Handle the second character of `$(`, `${`, `$[` or `$$`."""
        if character == "$":
            self._previous = "$$"
        elif character == "[":
            self._doubt = self._doubt or "there is a `$[` before it"
        elif character == "{":
            self._stack.append('"{' if self.quote is Quote.DOUBLE else "{")
        else:
            self._stack.append("$(")
            self._previous = "$("

    def _step_bare(self, top: str, previous: str, character: str) -> None:
        if character == "'":
            self._doubt_quotes(top)
            self._stack.append("$'" if previous == "$" else "'")
        elif character == "(":
            self._step_parenthesis(top, previous)
        elif previous + character == "<<":
            self.is_opaque = True
        elif character == "#" and top not in ("{", "((") and previous in _TOKEN_ENDS:
            self.is_comment = True
        elif character in "[]":
            self._step_bracket(previous, character)
        self._follow_word(character)

    def _step_parenthesis(self, top: str, previous: str) -> None:
        if previous == "$(":
            self._stack[-1:] = ["((", "(("]
        elif top == "((":
            self._stack.append("((")
        elif top in ("$(", "("):
            self._stack.append("(")
        if previous == "(" and top != "((":
            self._doubt = self._doubt or "there is a `((` before it"

    def _step_bracket(self, previous: str, character: str) -> None:
        if character == "[" and previous == "[":
            self._doubt = self._doubt or "there is a `[[` before it"
        elif character == "[" and (self._num_subscripts or previous == "_" or previous.isalnum()):
            self._num_subscripts += 1
        elif character == "]" and self._num_subscripts:
            self._num_subscripts -= 1

    def _follow_word(self, character: str) -> None:
        """Detect `case` in a substitution, where the `)` of a pattern does not close the substitution."""
        self._word = self._word + character if character.isalnum() or character == "_" else ""
        if self._word == "case" and "$(" in self._stack:
            self._doubt = self._doubt or "there is a `case` in `$(...)` before it"

    def _doubt_quotes(self, top: str) -> None:
        """Mark quotes in arithmetic and in quoted `${...}` as unsafe, because shells treat them differently."""
        if top in ("((", '"{'):
            self._doubt = self._doubt or 'there are quotes in `$((...))` or in `"${...}"` before it'


def quote_value(value: str, quote: Quote) -> str:
    """Quote `value`, if it needs quotes, for a position with this quoting state."""
    if _SAFE.match(value):
        return value
    if quote is Quote.SINGLE:
        return value.replace("'", "'\\''")
    if quote is Quote.DOUBLE:
        return re.sub(r'([\\"$`])', r"\\\1", value)
    return shlex.quote(value)


@dataclass(frozen=True, slots=True)
class Word:
    """Word of a command, as written and without quotes, and its position."""

    text: str
    value: str
    start: int = 0
    end: int = 0


def simple_commands(line: str) -> tuple[tuple[Word, ...], ...]:
    """Split a line into simple commands at `;`, `&`, `|`, parentheses and line ends.

    Raises:
        ValueError: a quote or substitution is not closed, or the line has a backquote or a here-document.
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
        raise ValueError("a quote or `$(` is not closed")
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
    """Return whether a word sets a variable for a command: `OMP_NUM_THREADS=8`."""
    return _ASSIGNMENT.match(word) is not None


def plain_argv(line: str, literals: Sequence[str]) -> tuple[str, ...] | None:
    """Return the arguments of a line, or None if the line needs a shell.

    Args:
        line: one command; its tokens are treated as plain text.
        literals: the literal parts of the line, without its tokens.
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
