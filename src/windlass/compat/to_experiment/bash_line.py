"""Shell line that Beaker passes to bash: its commands, and edits to its words.

Edits replace parts of the text at the positions that `windlass.plan.tokens.shell` found, so quotes and expansions are
kept. A line that cannot be parsed reliably (backquotes, here-documents) has no commands and is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.core.dataclass import dataclass
from windlass.plan.tokens.shell import Word, is_assignment, plain_argv, simple_commands

__all__ = ["BashCommand", "BashFlag", "BashLine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BashFlag:
    """Flag with its value, such as `--nnodes 4`; `start` and `end` are offsets in the line.

    Attributes:
        name: name with `-` instead of `_`, as launchers read it.
    """

    name: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BashCommand:
    """Simple command in a line; `words` excludes the assignments before the command."""

    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()

    @property
    def start(self) -> int:
        """Return the offset in the line at which the command begins, including its assignments."""
        return (*self.assignments, *self.words)[0].start

    def value(self, index: int) -> str:
        """Return a word without its quotes, or an empty string after the last word."""
        return self.words[index].value if index < len(self.words) else ""

    def flags(
        self, names: Iterable[str], *, switches: Iterable[str] = (), start: int = 0, until_script: bool = True
    ) -> list[BashFlag]:
        """Return the flags with these names, up to the script that a launcher starts.

        Args:
            start: index of the first word to search.
            switches: names that take no value.
        """
        wanted, alone = frozenset(names), frozenset(switches)
        found, index = [], start
        while index < len(self.words):
            word = self.words[index]
            if until_script and word.value.endswith(".py"):
                break
            key, equals, value = word.value.partition("=")
            name, last = key[2:].replace("_", "-") if key.startswith("--") else "", word
            if name in wanted | alone:
                if not equals and name in wanted and index + 1 < len(self.words):
                    index += 1
                    last = self.words[index]
                    value = last.value
                found.append(BashFlag(name=name, value=value, start=word.start, end=last.end))
            index += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BashLine:
    """Line with its simple commands; it has none if it cannot be parsed reliably."""

    text: str
    commands: tuple[BashCommand, ...]

    @classmethod
    def read(cls, text: str) -> BashLine:
        """Parse a line; never fails."""
        try:
            commands = simple_commands(text)
        except ValueError:
            return cls(text=text, commands=())
        return cls(text=text, commands=tuple(filter(None, map(_called, commands))))

    @property
    def argv(self) -> tuple[str, ...] | None:
        """Return the words of a line, or None if it needs a shell."""
        if len(self.commands) != 1 or self.commands[0].assignments or not self.text.strip():
            return None
        return plain_argv(self.text.strip(), [self.text.strip()])

    def without(self, flags: Sequence[BashFlag]) -> BashLine:
        """Return the line without these flags."""
        text = self.text
        for flag in sorted(flags, key=lambda flag: flag.start, reverse=True):
            rest = text[flag.end :]
            text = text[: flag.start] + rest.lstrip(" ") if rest[:1] == " " else text[: flag.start].rstrip(" ") + rest
        return BashLine.read(text)

    def insert(self, place: int, words: str) -> BashLine:
        """Return the line with words inserted at an offset, which is the end of a word."""
        return BashLine.read(f"{self.text[:place]} {words}{self.text[place:]}")

    def replace(self, start: int, end: int, words: str) -> BashLine:
        """Return the line with the text between two offsets replaced."""
        return BashLine.read(f"{self.text[:start]}{words}{self.text[end:]}")

    def joint(self, index: int) -> str:
        """Return the text between a command and the next one, such as `&&`."""
        return self.text[self.commands[index].words[-1].end : self.commands[index + 1].start].strip()

    def without_command(self, index: int) -> BashLine:
        """Return the line without a command and the operator after it; another command must follow."""
        start, end = self.commands[index].start, self.commands[index + 1].start
        return BashLine.read(self.text[:start] + self.text[end:])


def _called(words: tuple[Word, ...]) -> BashCommand | None:
    head = next((index for index, word in enumerate(words) if not is_assignment(word.text)), len(words))
    return BashCommand(words=words[head:], assignments=words[:head]) if head < len(words) else None
