"""Flags of open-instruct's command lines, read as its parser reads them; the table of all flags is `flags.toml`."""

from __future__ import annotations

import functools
import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from windlass.core.errors import Problem, SpecError, UsageError
from windlass.core.names import nearest

__all__ = ["UNSUPPORTED", "Flags", "flag_table", "known_flags", "peeled"]

UNSUPPORTED = "unsupported-setting"
_TRUE, _FALSE = frozenset({"true", "yes", "t", "y", "1"}), frozenset({"false", "no", "f", "n", "0"})
_NONE = frozenset({"", "none", "null"})
_ENDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "2>&1", "done", "$@"})


@functools.cache
def flag_table() -> Mapping[str, Any]:
    """Return the table of flags, entry points and their defaults."""
    return tomllib.loads(files("windlass.post.open_instruct").joinpath("flags.toml").read_text(encoding="utf-8"))


def peeled(line: str) -> tuple[str, list[str], list[str]]:
    """Return the entry point, the words before it, and its own ones."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        message = f"invalid command line: {error}"
        raise UsageError(message, hint="put it in single quotes", code="invalid-value") from error
    scripts = flag_table()["scripts"]
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        name = f"{word.removeprefix('open_instruct.')}.py" if word.startswith("open_instruct.") else name
        if name in scripts:
            own = words[place + 1 :]
            end = next((at for at, each in enumerate(own) if each in _ENDS), len(own))
            return name, words[:place], own[:end]
    hint = f"it must start one of {', '.join(scripts)}"
    raise UsageError("the command line starts no entry point of open-instruct", hint=hint, code="invalid-value")


@dataclass(slots=True, kw_only=True)
class Flags:
    """Values of a command line's flags; collects overrides, notes and problems."""

    script: str
    recipe: str
    values: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    overrides: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def read(self, words: Sequence[str], defaults: Mapping[str, str]) -> None:
        """Read words as argparse does: `--a-b`, `--a_b=value`, `--a value ...`, an abbreviation; the last one wins."""
        if words and not words[0].startswith("--"):
            message = f"{self.script} reads `{words[0]}`, and its flags are not in the command line"
            self.problems.append(Problem(message, UNSUPPORTED, hint="write its settings as flags"))
        self.values = {name: [value] for name, value in defaults.items()}
        place = 0
        while place < len(words):
            word, place = words[place], place + 1
            if not word.startswith("--"):
                continue
            spelt, equals, value = word[2:].partition("=")
            rest = [value] if equals else []
            while place < len(words) and not words[place].startswith("--"):
                rest.append(words[place])
                place += 1
            name, rest = self._named(spelt.replace("-", "_"), rest)
            self.values[name], self.given[name] = rest or ["true"], f"--{spelt}"

    def _named(self, name: str, rest: list[str]) -> tuple[str, list[str]]:
        known = known_flags()
        if name not in known and name.startswith("no_") and name[3:] in known:
            name, rest = name[3:], ["false"]
        if name not in known:
            longer = [each for each in known if each.startswith(name)]
            if len(longer) == 1:
                name = longer[0]
            else:
                close = nearest(name, known)
                hint = f"did you mean `--{close}`?" if close else "remove it; its effect, if any, is not known"
                self.problems.append(Problem(f"unknown flag `--{name}` of {self.script}", "unknown-key", hint=hint))
        alias: str = flag_table()["alias"].get(name, name)
        return alias, rest

    def refuse(self) -> None:
        """Add a problem for each refused value, and a note for each flag without effect."""
        table = flag_table()
        for name, (*values, reason) in table["refused"].items():
            allowed = {_plain_word(each) for each in values} | ({"0"} if "false" in values else set())
            if name in self.given and self._plain(name) not in allowed:
                message = f"`{self.given[name]} {' '.join(self.values[name])}` cannot be converted"
                self.problems.append(Problem(message, UNSUPPORTED, hint=reason))
            self.used.add(name)
        for reason, names in table["unused"].items():
            found = [self.given[name] for name in names if name in self.given]
            if found:
                self.notes.append(f"{', '.join(found)}: no effect; {reason}")
            self.used.update(names)
        for name, path in table["same"].items():
            if name in self.values:
                self.set(path, self.text(name))

    def _plain(self, name: str) -> str:
        return _plain_word(" ".join(self.values[name]))

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a flag; an empty text for None."""
        self.used.add(name)
        values = self.values.get(name, [default])
        if len(values) != 1:
            self.wrong(name, "takes one value")
        elif "$" in values[0]:
            self.wrong(name, "has a variable; write its value")
            return default
        return "" if values[0].lower() in _NONE else values[0]

    def number(self, name: str, default: float = 0.0) -> float:
        """Return the value of a flag as a number; for None the default."""
        text = self.text(name)
        try:
            return float(text) if text else default
        except ValueError:
            self.wrong(name, "is not a number")
            return default

    def whole(self, name: str, default: int = 0) -> int:
        """Return the value of a flag as a whole number; for None the default."""
        value = self.number(name, default)
        if value != int(value):
            self.wrong(name, "is not a whole number")
        return int(value)

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Return the value of a boolean flag."""
        text = self.text(name, str(default)).lower()
        if text not in _TRUE | _FALSE:
            self.wrong(name, "is neither true nor false")
        return text in _TRUE

    def words(self, name: str) -> list[str]:
        """Return the values of a flag with a list."""
        self.used.add(name)
        return self.values.get(name, [])

    def wrong(self, name: str, what: str) -> None:
        """Add a problem with a flag's value."""
        message = f"`{self.given.get(name, f'--{name}')} {' '.join(self.values.get(name, []))}` {what}"
        self.problems.append(Problem(message, "invalid-value", hint="correct it and convert again"))

    def set(self, path: str, value: object) -> None:
        """Set a field of the recipe; None is null."""
        self.overrides.append(f"{path}={value if isinstance(value, str) else json.dumps(value)}")

    def finish(self) -> None:
        """Note given flags that this entry point does not have; raise if there are problems."""
        for name in self.given:
            if name not in self.used and name in known_flags():
                self.notes.append(f"{self.given[name]}: no effect in {self.script}")
        if self.problems:
            raise SpecError(dict.fromkeys(self.problems))


@functools.cache
def known_flags() -> frozenset[str]:
    """Return the names of all flags."""
    table = flag_table()
    named = (table["read"], table["same"], table["alias"], table["refused"], *table["unused"].values())
    return frozenset(name for names in named for name in names)


def _plain_word(text: str) -> str:
    """Return a value in the form in which values are compared: None and empty lists are empty, 1.0 is 1."""
    word = text.lower()
    if word in _TRUE | _FALSE and word not in {"0", "1"}:
        return "true" if word in _TRUE else "false"
    try:
        return f"{float(word):g}"
    except ValueError:
        return "" if word in _NONE | {"[]"} else word
