"""From the words of `gantry run [options] -- COMMAND` to values by field, or an error that names the word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.compat.gantry.options import GantryOption, names
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError
from windlass.core.names import nearest

__all__ = ["GantryCommandLine", "read_words"]

Value = str | int | float | bool | tuple[str, ...]
_BY_NAME = {name: (option, is_on) for name, option, is_on in names()}
PROGRAM = "windlass gantry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryCommandLine:
    """Parsed command line: values by field (only those given), the command, and options accepted without effect."""

    values: Mapping[str, Value]
    command: tuple[str, ...]
    notes: tuple[str, ...]


def read_words(argv: Sequence[str]) -> GantryCommandLine:
    """Read a command line; of an option that takes one value the last one counts, and a note says so.

    Raises:
        UsageError: no `--`, no command, an unknown option, a value that is missing, wrong or not wanted.
    """
    words, command = _split(list(argv))
    values: dict[str, Value] = {}
    notes: list[str] = []
    while words:
        option, value = _next(words)
        if option.kind == "many":
            known = values.get(option.field, ())
            assert isinstance(known, tuple)
            assert isinstance(value, str)
            values[option.field] = (*known, value)
        else:
            if option.field in values and values[option.field] != value:
                notes.append(f"{option.name} is given twice: `{values[option.field]}` is replaced by `{value}`")
            values[option.field] = value
        if option.note and (note := f"{option.name}: {option.note}") not in notes:
            notes.append(note)
    return GantryCommandLine(values=values, command=command, notes=tuple(notes))


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in words:
        hint = f"{PROGRAM} --gpus 1 -- python train.py"
        raise UsageError("no `--` before the command", hint=hint, code="missing-argument")
    at = words.index("--")
    command = tuple(words[at + 1 :])
    if not command:
        message = "no command after `--`"
        raise UsageError(message, hint=f"{PROGRAM} --gpus 1 -- python train.py", code="missing-argument")
    return words[:at], command


def _next(words: list[str]) -> tuple[GantryOption, Value]:
    """The next option with its value; takes their words away."""
    word = words.pop(0)
    if not word.startswith("-") or word == "-":
        hint = "flags take no value, and the command goes after `--`"
        raise UsageError(f"`{word}` before `--` is neither an option nor its value", hint=hint, code="usage")
    if word.startswith("--"):
        name, has_value, given = word.partition("=")
        option, is_on = _find(name)
        return option, _value(option, name, is_on, given if has_value else None, words)
    name, rest = word[:2], word[2:]
    option, is_on = _find(name)
    if option.kind not in ("flag", "switch"):
        return option, _value(option, name, is_on, rest.removeprefix("=") if rest else None, words)
    if rest:
        words.insert(0, f"-{rest}")  # -yn NAME is -y -n NAME
    return option, _value(option, name, is_on, None, words)


def _find(name: str) -> tuple[GantryOption, bool]:
    found = _BY_NAME.get(name)
    if found is None:
        close = nearest(name, _BY_NAME)
        hint = f"did you mean `{close}`?" if close else f"`{PROGRAM} --help` lists its options"
        raise UsageError(f"`{PROGRAM}` has no option `{name}`", hint=hint, code="unknown-option")
    return found


def _value(option: GantryOption, name: str, is_on: bool, given: str | None, words: list[str]) -> Value:
    if option.kind in ("flag", "switch"):
        if given is not None:
            hint = f"write `{name}` without a value" + (
                f", or `{option.off_names[0]}`" if option.off_names and is_on else ""
            )
            raise UsageError(f"`{name}` takes no value, but got `{given}`", hint=hint, code="bad-value")
        return is_on
    if given is None:
        if not words:
            hint = f"write `{name} {option.metavar}`"
            raise UsageError(f"`{name}` needs a value", hint=hint, code="missing-argument")
        given = words.pop(0)
    if option.choices and given not in option.choices:
        hint = f"use one of {', '.join(option.choices)}"
        raise UsageError(f"`{name} {given}`: invalid value", hint=hint, code="bad-value")
    return given if option.kind in ("text", "many") else _number(option, name, given)


def _number(option: GantryOption, name: str, given: str) -> int | float:
    try:
        number = int(given) if option.kind == "whole" else float(given)
    except ValueError:
        number = float("nan")
    if not 0 <= number < 1e9:
        what = "a whole number" if option.kind == "whole" else "a number"
        raise UsageError(f"`{name} {given}`: not {what} from 0 on", hint=f"write `{name} 1`", code="bad-value")
    return number
