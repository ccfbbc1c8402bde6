"""Complete command line of `windlass gantry run`: the recipe, the options for following it, and the action."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from windlass.compat.gantry.durations import to_seconds
from windlass.compat.gantry.following import FollowOptions
from windlass.compat.gantry.options import GantryOption, names
from windlass.compat.gantry.recipe import Recipe
from windlass.config.foreign_text import load_toml
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, SourcePlace, UsageError
from windlass.core.names import nearest

__all__ = ["GantryCommandLine", "GantrySettings", "Invocation", "read_command_line", "read_settings", "read_words"]

_TIMES = ("start_timeout", "inactive_timeout", "inactive_soft_timeout")
_SLACK = "GANTRY_SLACK_WEBHOOK_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Parsed command line of `gantry run`.

    Attributes:
        emit: `spec` (windlass's), `beaker` or `plan`; empty to run the command.
        on: a windlass site; empty for Beaker, unchanged.
        is_dry: only print.
        is_online: whether a dry run may contact Beaker.
        notes: notes about settings that have no effect.
    """

    recipe: Recipe
    following: FollowOptions
    emit: str = ""
    on: str = ""
    is_dry: bool = False
    is_online: bool = False
    notes: tuple[str, ...] = ()


def read_command_line(
    argv: Sequence[str], *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Invocation:
    """Parse the words after `gantry run`, using the defaults of the project and the environment.

    Raises:
        UsageError: a word is wrong; the message names it.
        PreconditionError: the project's settings cannot be read.
    """
    environ = os.environ if environ is None else environ
    line = read_words(argv)
    given: dict[str, Any] = dict(line.values)
    settings = read_settings(folder or Path.cwd())
    defaults = {
        "workspace": settings.workspace,
        "budget": settings.budget,
        "gh_token_secret": settings.gh_token_secret,
        "results": environ.get("RESULTS_DIR", ""),
        "runtime_dir": environ.get("GANTRY_RUNTIME_DIR", ""),
    }
    values = {key: value for key, value in defaults.items() if value} | given
    names = {field.name for field in fields(Recipe)} - {"args", "callbacks", "git_repo"}
    recipe = Recipe(args=line.command, **{key: value for key, value in values.items() if key in names})
    recipe.check()
    _check_conda_file(recipe, folder or Path.cwd())
    notes = [*line.notes, *settings.notes]
    if environ.get(_SLACK) and "slack_webhook_url" not in given:
        notes.append(f"{_SLACK} is set: windlass sends nothing to Slack")
    if recipe.preemptible is not None:
        notes.append("`--preemptible` is the old form of `--min-runtime` and `--no-auto-resume`")
    if recipe.skip_tcpxo_setup:
        notes.append("`--skip-tcpxo-setup` is the old name of `--skip-nccl-setup`")
    return Invocation(
        recipe=recipe,
        following=_following(given),
        **_what(given),
        notes=tuple(notes),
    )


def _check_conda_file(recipe: Recipe, folder: Path) -> None:
    """Raise if the conda file is not in the local checkout; files in other repositories are not checked."""
    if recipe.conda_file is not None and recipe.remote is None and not (folder / recipe.conda_file).is_file():
        message = f"`--conda-file {recipe.conda_file}`: no such file"
        raise UsageError(message, hint="write its path in the repository", code="invalid-value")


def _what(given: Mapping[str, Any]) -> dict[str, Any]:
    emit, on = given.get("emit", ""), given.get("on", "")
    is_dry = bool(given.get("dry_run"))
    if on and emit == "beaker":
        message = "`--emit beaker` prints Beaker's spec, and `--on` uses another site"
        raise UsageError(message, hint="with `--on` use `--emit spec` or `--emit plan`", code="conflicting-options")
    if given.get("is_online") and not (is_dry or emit):
        message = "`--online` without `--dry-run` or `--emit`"
        raise UsageError(message, hint="a launch always contacts Beaker; remove it", code="conflicting-options")
    if emit and is_dry:
        message = f"`--dry-run` with `--emit {emit}`"
        raise UsageError(message, hint="both only print; use one", code="conflicting-options")
    return {"emit": emit, "on": on, "is_dry": is_dry, "is_online": bool(given.get("is_online"))}


def _following(given: Mapping[str, Any]) -> FollowOptions:
    timeout: float | None = None
    if (text := given.get("timeout")) is not None:
        timeout = -1.0 if text.strip() == "-1" else to_seconds("--timeout", text)
    times = {key: given.get(key) for key in _TIMES}
    limits = {
        f"{key}_s": None if value is None else to_seconds(f"--{key.replace('_', '-')}", value)
        for key, value in times.items()
    }
    return FollowOptions.of(show_logs=given.get("show_logs"), timeout_s=timeout, **limits, is_canceled_with_us=True)


_TEXTS = ("workspace", "budget", "gh_token_secret")
_SILENT = ("log_level", "quiet")
"""Return the options of following the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GantrySettings:
    """Defaults that a project sets; those that it does not set are empty."""

    workspace: str = ""
    budget: str = ""
    gh_token_secret: str = ""
    notes: tuple[str, ...] = ()


def read_settings(folder: Path) -> GantrySettings:
    """Return the settings of the project in `folder`, which are empty without a pyproject.toml.

    Raises:
        PreconditionError: the file is not TOML, or a setting is not a string.
    """
    path = folder / "pyproject.toml"
    try:
        table = load_toml(path.read_text(encoding="utf-8")).get("tool", {}).get("gantry", {})
    except (FileNotFoundError, NotADirectoryError):
        return GantrySettings()
    except (ValueError, AttributeError, OSError) as error:
        hint = "fix its TOML syntax: https://toml.io"
        raise PreconditionError(f"cannot read {path}: {error}", hint=hint, code="invalid-file") from error
    place = SourcePlace(f"{path}: [tool.gantry]")
    if not isinstance(table, dict):
        raise PreconditionError(
            "`tool.gantry` is not a table", hint="write [tool.gantry]", code="invalid-file", place=place
        )
    for key in _TEXTS:
        if not isinstance(table.get(key, ""), str):
            message = f"`{key}` is `{table[key]}`, not a string"
            raise PreconditionError(message, hint=f'{key} = "..."', code="invalid-file", place=place)
    return GantrySettings(**{key: table[key] for key in _TEXTS if key in table}, notes=tuple(_notes(table)))


def _notes(table: dict[str, object]) -> list[str]:
    notes = []
    for key in table:
        if key == "callback_modules":
            notes.append("[tool.gantry] callback_modules: gantry's callbacks are not run")
        elif key not in (*_TEXTS, *_SILENT):
            close = nearest(key, _TEXTS)
            notes.append(f"[tool.gantry] {key} is an unknown setting" + (f"; did you mean `{close}`?" if close else ""))
    return notes


Value = str | int | float | bool | tuple[str, ...]
_BY_NAME = {name: (option, is_on) for name, option, is_on in names()}
PROGRAM = "windlass gantry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryCommandLine:
    """Parsed command line: values by field (only given ones), the command, and options accepted without effect."""

    values: Mapping[str, Value]
    command: tuple[str, ...]
    notes: tuple[str, ...]


def read_words(argv: Sequence[str]) -> GantryCommandLine:
    """Parse a command line; the last of repeated values is used, with a note.

    Raises:
        UsageError: no `--`, no command, an unknown option, a missing, wrong or unexpected value.
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
    """Return the next option with its value, and remove both from `words`."""
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
            raise UsageError(f"`{name}` takes no value, but got `{given}`", hint=hint, code="invalid-value")
        return is_on
    if given is None:
        if not words:
            hint = f"write `{name} {option.metavar}`"
            raise UsageError(f"`{name}` needs a value", hint=hint, code="missing-argument")
        given = words.pop(0)
    if option.choices and given not in option.choices:
        hint = f"use one of {', '.join(option.choices)}"
        raise UsageError(f"`{name} {given}`: invalid value", hint=hint, code="invalid-value")
    return given if option.kind in ("text", "many") else _number(option, name, given)


def _number(option: GantryOption, name: str, given: str) -> int | float:
    try:
        number = int(given) if option.kind == "whole" else float(given)
    except ValueError:
        number = float("nan")
    if not 0 <= number < 1e9:
        what = "a whole number" if option.kind == "whole" else "a number"
        raise UsageError(
            f"`{name} {given}`: expected {what}, at least 0", hint=f"write `{name} 1`", code="invalid-value"
        )
    return number
