"""Planning of launches with `windlass mason ... --on SITE`."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.reading import MasonLaunch
from windlass.compat.mason.to_experiment.experiment import to_experiment
from windlass.compat.to_experiment.destination import Destination, destination_at, is_this_machine
from windlass.compat.to_experiment.diagnostics import ConvertedExperiment, with_options
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.errors import SpecError, UsageError
from windlass.spec import Env, Experiment, Image

if TYPE_CHECKING:
    from windlass.launcher.prepare import Prepared
    from windlass.runs.home import Home
    from windlass.sites.profile import Profile

__all__ = ["beaker_profile", "bring", "cache_datasets", "destination", "prepare_at_site", "site_account"]


def site_account(home: Home, *, asked: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> KnownAccount:
    """Return the account for a launch without Beaker: this machine's user and windlass's vault.

    Args:
        asked: secrets that the command line names; the plan checks that the vault has them.
    """
    from windlass.secrets.lookup import open_secrets  # lazy: Beaker's own launches need none

    user = environ.get("BEAKER_USER") or getpass.getuser()
    return KnownAccount(name=user, secret_names=(*open_secrets(home.path, environ).sources(), *asked))


def beaker_profile(place: str, home: Home) -> Profile | None:
    """Return the profile of a Beaker site, or None for any other site.

    Raises:
        UsageError: no such site.
    """
    name = place.partition("/")[0]
    if not name or is_this_machine(name):
        return None
    from windlass.sites.store import find_site  # lazy: imports the profiles

    profile = find_site(name, home.path)
    return profile if profile.kind == "beaker" else None


def destination(launch: MasonLaunch, home: Home) -> Destination:
    """Return the site named by `--on`, with the profile's translation of Beaker's names.

    Raises:
        UsageError: no such site.
        SpecError: its profile is invalid.
    """
    roots = {mount["mountPath"] for task in launch.spec["tasks"] for mount in task["datasets"]}
    here = tuple(sorted(root for root in roots if Path(root).exists()))
    return destination_at(launch.own.on or "local", home.path, paths=dict(launch.own.paths), present=here)


def bring(launch: MasonLaunch, place: Destination) -> ConvertedExperiment:
    """Return the experiment for a command line at a site, with the changes from `--set`. Pure.

    Raises:
        UsageError: `--cache there` at Beaker itself, or several environments are named.
        SpecError: the experiment or a change is rejected.
    """
    own = launch.own
    converted = to_experiment(launch, place, env=_env(launch), caches=_cache(launch) == "there", name=own.name)
    if not own.overrides:
        return converted
    text = to_yaml(converted.experiment)
    changed = load_config(Experiment, text, source="windlass mason", overrides=own.overrides).value
    return replace(converted, experiment=changed)


def prepare_at_site(
    launch: MasonLaunch,
    *,
    is_dry: bool = False,
    home: Home | None = None,
    environ: Mapping[str, str] = os.environ,
    log: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Return the plan for a command line with `--on`, which `windlass.launcher` executes.

    With `--cache here`, and unless dry, caches datasets locally first, which blocks for minutes.

    Raises:
        WindlassError: the command line, the site, a pin or the plan is rejected; nothing was started.
    """
    from windlass.launcher.prepare import Options, prepare  # lazy: a command line for Beaker plans nothing
    from windlass.runs.home import Home  # lazy: as above

    home, own = home or Home.default(), launch.own
    place = destination(launch, home)
    converted = bring(launch, place)
    options = Options(
        on="" if len(converted.experiment.where) > 1 else converted.experiment.where[0],
        snapshot=own.is_snapshot,
        allow_dirty=own.is_allow_dirty,
        best_effort=own.is_best_effort,
        dry_run=is_dry,
    )
    try:
        prepared = prepare(
            converted.experiment, Path(launch.folder), options, overrides=own.overrides, home=home, log=log
        )
    except SpecError as error:
        raise with_options(error, {"nodes": "--num_nodes", "gpus": "--gpus"}, other="--set") from error
    if _cache(launch) == "here" and not is_dry:  # last, so that errors are raised before minutes of caching
        cache_datasets(launch, environ=environ, log=log)
    return replace(prepared, plan=replace(prepared.plan, notes=(*converted.notes, *prepared.plan.notes)))


def cache_datasets(
    launch: MasonLaunch, *, environ: Mapping[str, str] = os.environ, log: Callable[[str], None] = lambda line: None
) -> int:
    """Cache the datasets of all commands on this machine before submission, one at a time, as mason does.

    Returns:
        The number of cached datasets.

    Raises:
        PreconditionError: one of them failed.
    """
    if launch.options.no_auto_dataset_cache or _cache(launch) != "here":
        return 0
    from windlass.compat.mason.caching import cache_here  # lazy: most command lines cache nothing
    from windlass.compat.mason.rewriting import (
        with_defaults,
    )  # as typed: the job's folders do not exist on this machine

    tokenizers = Path(launch.options.auto_output_dir_path or launch.folder) / launch.user
    return sum(
        cache_here(with_defaults(command.given), environ=environ, tokenizers=tokenizers, log=log)
        for command in launch.commands
        if command.training
    )


def _cache(launch: MasonLaunch) -> str:
    own = launch.own
    is_elsewhere = bool(own.on or own.emit in ("spec", "plan"))
    if not own.cache:
        return "there" if is_elsewhere else "here"
    if own.cache == "there" and not is_elsewhere:
        hint = "add `--on SITE`, or write `--cache here`, or `none`"
        raise UsageError("`--cache there` requires `--on`", hint=hint, code="invalid-value")
    return own.cache


def _env(launch: MasonLaunch) -> Env | None:
    own = launch.own
    given = {"--env-uv": own.env_uv, "--env-python": own.env_python, "--env-image": own.env_image}
    named = [flag for flag, value in given.items() if value]
    if len(named) > 1:
        message = f"{' and '.join(f'`{flag}`' for flag in named)} name several environments"
        raise UsageError(message, hint="keep one of them", code="conflicting-options")
    if not named:
        return None
    return Env(uv=own.env_uv, python=own.env_python, image=_image(own.env_image))


def _image(text: str) -> Image:
    return Image.from_shorthand(text) if text else Image()
