"""A whole command line of `windlass gantry run`: the recipe, how it is watched, and what is to be done with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from windlass.compat.gantry.command_line import read_words
from windlass.compat.gantry.durations import to_seconds
from windlass.compat.gantry.following import FollowOptions
from windlass.compat.gantry.recipe import Recipe
from windlass.compat.gantry.settings import read_settings
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

__all__ = ["Invocation", "read_command_line"]

_TIMES = ("start_timeout", "inactive_timeout", "inactive_soft_timeout")
_SLACK = "GANTRY_SLACK_WEBHOOK_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Parsed command line of `gantry run`.

    Attributes:
        emit: `spec` (of windlass), `beaker`, `plan`; empty: run it.
        on: a site of windlass; empty: Beaker, as it is.
        is_dry: print and do nothing.
        is_online: a dry run may ask Beaker.
        notes: what is accepted without effect.
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
    """Read the words behind `gantry run`, with the defaults of the project and of the environment.

    Raises:
        UsageError: anything wrong with the words; it names the one.
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
    """Refuse a file that is not in the checkout here; one of another repository is not known."""
    if recipe.conda_file is not None and recipe.remote is None and not (folder / recipe.conda_file).is_file():
        message = f"`--conda-file {recipe.conda_file}`: no such file"
        raise UsageError(message, hint="write its path in the repository", code="bad-value")


def _what(given: Mapping[str, Any]) -> dict[str, Any]:
    emit, on = given.get("emit", ""), given.get("on", "")
    is_dry = bool(given.get("dry_run"))
    if on and emit == "beaker":
        message = "`--emit beaker` prints Beaker's spec, and `--on` uses another site"
        raise UsageError(message, hint="with `--on` use `--emit spec` or `--emit plan`", code="options-conflict")
    if given.get("is_online") and not (is_dry or emit):
        message = "`--online` without `--dry-run` or `--emit`"
        raise UsageError(message, hint="a launch asks Beaker anyway; remove it", code="options-conflict")
    if emit and is_dry:
        message = f"`--dry-run` with `--emit {emit}`"
        raise UsageError(message, hint="both only print; use one", code="options-conflict")
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
