"""A line that Beaker gives to bash: its commands, and how words are taken out of it or put in.

The line is text all the way, cut at the places that `windlass.plan.tokens.shell` found, so quotes and expansions stay as
they are. A line that cannot be read with certainty (backquotes, here-documents) has no commands, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.core.dataclass import dataclass
from windlass.plan.tokens.shell import Word, is_assignment, plain_argv, simple_commands

__all__ = ["BashCommand", "BashFlag", "BashLine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BashFlag:
    """A flag and its value, such as `--nnodes 4`; `start` and `end` are places in the line.

    Attributes:
        name: with `-` for `_`, as launchers read it.
    """

    name: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BashCommand:
    """Simple command of a line; `words` without the assignments in front of it."""

    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()

    @property
    def start(self) -> int:
        """Return its start in the line, assignments included."""
        return (*self.assignments, *self.words)[0].start

    def value(self, index: int) -> str:
        """A word without its quotes; empty past the end."""
        return self.words[index].value if index < len(self.words) else ""

    def flags(
        self, names: Iterable[str], *, switches: Iterable[str] = (), start: int = 0, until_script: bool = True
    ) -> list[BashFlag]:
        """The flags of these names; of those of a launcher, the ones up to the script that it starts.

        Args:
            start: the first word to look at.
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
    """A line and its simple commands; none where it cannot be read with certainty."""

    text: str
    commands: tuple[BashCommand, ...]

    @classmethod
    def read(cls, text: str) -> BashLine:
        """Read a line; never fails."""
        try:
            commands = simple_commands(text)
        except ValueError:
            return cls(text=text, commands=())
        return cls(text=text, commands=tuple(filter(None, map(_called, commands))))

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The words of a line that needs no shell; None where it needs one."""
        if len(self.commands) != 1 or self.commands[0].assignments or not self.text.strip():
            return None
        return plain_argv(self.text.strip(), [self.text.strip()])

    def without(self, flags: Sequence[BashFlag]) -> BashLine:
        """The line without these flags."""
        text = self.text
        for flag in sorted(flags, key=lambda flag: flag.start, reverse=True):
            rest = text[flag.end :]
            text = text[: flag.start] + rest.lstrip(" ") if rest[:1] == " " else text[: flag.start].rstrip(" ") + rest
        return BashLine.read(text)

    def insert(self, place: int, words: str) -> BashLine:
        """The line with words behind the word that ends at a place."""
        return BashLine.read(f"{self.text[:place]} {words}{self.text[place:]}")

    def replace(self, start: int, end: int, words: str) -> BashLine:
        """The line with other words from one offset to another."""
        return BashLine.read(f"{self.text[:start]}{words}{self.text[end:]}")

    def joint(self, index: int) -> str:
        """Return the text between a command and the next one, such as `&&`."""
        return self.text[self.commands[index].words[-1].end : self.commands[index + 1].start].strip()

    def without_command(self, index: int) -> BashLine:
        """The line without one command and the operator behind it; there must be a command after it."""
        start, end = self.commands[index].start, self.commands[index + 1].start
        return BashLine.read(self.text[:start] + self.text[end:])


def _called(words: tuple[Word, ...]) -> BashCommand | None:
    head = next((index for index, word in enumerate(words) if not is_assignment(word.text)), len(words))
    return BashCommand(words=words[head:], assignments=words[:head]) if head < len(words) else None
