"""Options on a launcher's command line, up to the script that it runs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from windlass.core.dataclass import dataclass
from windlass.plan.tokens.command_line import ShellProgram

__all__ = ["LauncherOption", "LauncherOptions", "scan_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOption:
    """Option with its normalized name (`nproc-per-node`), its value, and its words as written."""

    name: str
    value: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """Options on a program's command line; `stop` is the index of the first word after them."""

    start: int
    stop: int
    found: tuple[LauncherOption, ...]

    @property
    def names(self) -> AbstractSet[str]:
        """Return the names of the options."""
        return frozenset(option.name for option in self.found)

    def value(self, name: str) -> str:
        """Return the value of the last option with this name, or an empty string."""
        return next((option.value for option in reversed(self.found) if option.name == name), "")


def scan_options(program: ShellProgram, start: int, switches: AbstractSet[str]) -> LauncherOptions:
    """Read the options from word `start` on; all except `switches` take a value."""
    words, index = program.words, start
    found: list[LauncherOption] = []
    while index < len(words) and words[index].value.startswith("-"):
        key, equals, value = words[index].value.partition("=")
        name = key[2:].replace("_", "-") if key.startswith("--") else key
        size = 1 if equals or name in switches else 2
        if size == 2 and index + 1 < len(words):
            value = words[index + 1].value
        texts = tuple(word.text for word in words[index : index + size])
        found.append(LauncherOption(name=name, value=value, texts=texts))
        index += size
    return LauncherOptions(start=start, stop=min(index, len(words)), found=tuple(found))
