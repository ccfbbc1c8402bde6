"""Mapping of paths in Beaker's jobs to paths at another site, in command lines and values.

A folder of the run (`${out}`) is represented by a mark until it is known whether bash will read the line: bash gets a
variable with the quotes that it needs there, a list of arguments gets the token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from windlass.compat.to_experiment.bash_line import BashLine
from windlass.core.dataclass import dataclass
from windlass.plan.tokens.shell import Quote, ShellScanner, quote_value
from windlass.spec import Command

__all__ = ["CACHE", "CHECKPOINTS", "CODE", "OUT", "Relocation", "RunFolderMark", "command_of", "escaped"]

_ABSOLUTE = re.compile(r"(?<![\w./:@$}~*-])/[\w.@%+-]+(?:/[\w.@%+-]+)+")
_EVERYWHERE = re.compile(r"/(?:bin|dev|etc|lib|lib64|proc|run|sbin|sys|tmp|usr)/")
"""Folders that exist on every Linux machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolderMark:
    """Folder of the run: the mark for it in a line, its token, and the variable that holds its path."""

    text: str
    token: str
    variable: str


OUT = RunFolderMark(text="@windlass.out@", token="${out}", variable="WINDLASS_OUT")  # noqa: S106 - no password
CHECKPOINTS = RunFolderMark(text="@windlass.ckpt@", token="${checkpoints}", variable="WINDLASS_CHECKPOINTS")  # noqa: S106
CODE = RunFolderMark(text="@windlass.code@", token="${code}", variable="WINDLASS_CODE")  # noqa: S106
CACHE = RunFolderMark(text="@windlass.cache@", token="${data.cache}", variable="DATASET_CACHE")  # noqa: S106
_MARKS = {mark.text: mark for mark in (OUT, CHECKPOINTS, CODE, CACHE)}
_ANY_MARK = re.compile("|".join(map(re.escape, _MARKS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """Mapping of path prefixes.

    Attributes:
        paths: folder or mark by path prefix.
        roots: path prefixes of Beaker's storage.
        present: path prefixes that are the same at the site.
    """

    paths: Mapping[str, str]
    roots: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern, which prefers longer prefixes and matches only whole folder names."""
        words = sorted({path.rstrip("/") for path in (*self.paths, *self.roots, *self.present)}, key=len, reverse=True)
        text = "|".join(re.escape(word) for word in words if word) or r"(?!)"
        object.__setattr__(self, "_pattern", re.compile(rf"(?<![\w./-])(?:{text})(?![\w.-])"))

    def line(self, text: str) -> str:
        """Return the line with all known paths replaced, with quotes as needed."""
        scanner, done, position = ShellScanner(), "", 0
        for match in self._pattern.finditer(text):
            scanner.feed(text[position : match.start()])
            target = self._target(match.group())
            done += text[position : match.start()]
            done += match.group() if target is None else quote_value(target, scanner.quote)
            scanner.feed(match.group())
            position = match.end()
        return done + text[position:]

    def value(self, text: str) -> str:
        """Return a variable's value with all known paths replaced, as in an experiment file."""
        replaced = self._pattern.sub(lambda match: self._target(match.group()) or match.group(), escaped(text))
        return _ANY_MARK.sub(lambda match: _MARKS[match.group()].token, replaced)

    def strangers(self, text: str) -> tuple[str, ...]:
        """Return the paths on Beaker's storage in a string that are unknown at the site, each in full."""
        found = []
        for match in self._pattern.finditer(text):
            if self._target(match.group()) is None and not self._is_present(match.group()):
                rest = re.match(r"[^\s'\"`;|&()<>,}]*", text[match.end() :])
                found.append(match.group() + (rest.group() if rest else ""))
        return tuple(dict.fromkeys(found))

    def kept(self, text: str) -> tuple[str, ...]:
        """Return the absolute paths in a string that are unknown and therefore used unchanged."""
        found = (match.group() for match in _ABSOLUTE.finditer(text))
        return tuple(
            dict.fromkeys(path for path in found if not _EVERYWHERE.match(path) and not self._pattern.match(path))
        )

    def _target(self, path: str) -> str | None:
        """Return the path at the site, using the longest known prefix."""
        for known in sorted(self.paths, key=len, reverse=True):
            if _is_below(path, known):
                return self.paths[known].rstrip("/") + path[len(known.rstrip("/")) :] or "/"
        return None

    def _is_present(self, path: str) -> bool:
        return any(_is_below(path, each) for each in self.present)


def _is_below(path: str, folder: str) -> bool:
    start = folder.rstrip("/")
    return path == start or path.startswith(start + "/")


def escaped(text: str) -> str:
    """Return text with its tokens escaped for an experiment file."""
    return text.replace("${", "$${")


def command_of(line: BashLine) -> Command:
    """Return a task's command: arguments if no shell is needed, else the line for bash, as on Beaker."""
    argv = line.argv
    if argv is not None:
        return tuple(_ANY_MARK.sub(lambda match: _MARKS[match.group()].token, escaped(word)) for word in argv)
    scanner, done, position = ShellScanner(), "", 0
    for match in _ANY_MARK.finditer(line.text):
        scanner.feed(line.text[position : match.start()])
        done += escaped(line.text[position : match.start()]) + _inserted(_MARKS[match.group()], scanner.quote)
        scanner.feed(match.group())
        position = match.end()
    return ("bash", "-c", done + escaped(line.text[position:]))


def _inserted(mark: RunFolderMark, quote: Quote) -> str:
    """Return a mark's variable, quoted so that bash reads it as one word."""
    if quote is Quote.DOUBLE:
        return f"$${{{mark.variable}}}"
    return f'"${mark.variable}"' if quote is Quote.BARE else f"'\"${mark.variable}\"'"
