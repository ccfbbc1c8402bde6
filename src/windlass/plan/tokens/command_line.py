"""User's command, a shell line or a list, split into words that a launcher can rewrite."""

from __future__ import annotations

import re
from collections.abc import Sequence

from windlass.core.dataclass import dataclass
from windlass.plan.diagnostics import spec_error
from windlass.plan.tokens.shell import Word, is_assignment, plain_argv, simple_commands
from windlass.plan.tokens.tokens import Token, parse_tokens
from windlass.spec import Command

__all__ = ["ShellLine", "ShellProgram", "is_python"]

_PREFIXES = frozenset({"env", "exec", "time", "then", "do", "else", "if", "elif", "while", "until", "!", "{"})
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellProgram:
    """Simple command in a shell line: its words, and the index of the program name."""

    words: tuple[Word, ...]
    head: int

    def value(self, offset: int) -> str:
        """Return the word `offset` positions after the program name; empty past the end."""
        index = self.head + offset
        return self.words[index].value if index < len(self.words) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLine:
    """Programs that a command runs, with a method to replace the words of one of them."""

    command: Command
    programs: tuple[ShellProgram, ...]

    @classmethod
    def parse(cls, command: Command, path: str) -> ShellLine:
        """Parse a command; `path` names the task in the message of a SpecError."""
        if not isinstance(command, str):
            words = tuple(Word(item, item) for item in command)
            program = _program(words, ("env",))
            return cls(command=command, programs=(program,) if program.head < len(words) else ())
        try:
            commands = simple_commands(command)
        except ValueError as error:
            message = f"the command of {path}.run cannot be rewritten for a launcher: {error}"
            raise spec_error(
                message, "launcher-command", "use $(...) and closed quotes, or put the line into a script"
            ) from error
        found = (_program(words, _PREFIXES) for words in commands)
        return cls(command=command, programs=tuple(program for program in found if program.head < len(program.words)))

    def replace(self, program: ShellProgram, stop: int, texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """Replace the words from the program name up to word `stop`.

        Returns:
            The argv, and whether it is a shell with the user's line.
        """
        if not isinstance(self.command, str):
            return (*self.command[: program.head], *texts, *self.command[stop:]), False
        start, end = program.words[program.head].start, program.words[stop - 1].end
        line = self.command[:start] + " ".join(texts) + self.command[end:]
        argv = _plain(line) if program.head == 0 and len(self.programs) == 1 else None
        return (argv, False) if argv is not None else (("/bin/sh", "-c", line), True)


def _program(words: tuple[Word, ...], prefixes: Sequence[str] | frozenset[str]) -> ShellProgram:
    head = 0
    while head < len(words) and (words[head].text in prefixes or is_assignment(words[head].text)):
        head += 1
    return ShellProgram(words=words, head=head)


def _plain(line: str) -> tuple[str, ...] | None:
    pieces = parse_tokens(line)
    if any(isinstance(piece, str) and "${" in piece for piece in pieces):
        return None
    return plain_argv(line.strip(), [piece for piece in pieces if not isinstance(piece, Token)])


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter."""
    return _PYTHON.match(word) is not None
