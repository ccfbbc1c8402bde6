"""Preparation of a sweep from an experiment file with a `sweep:` section. Starts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError, Problem, SourcePlace, SpecError
from windlass.core.names import NAME_RULE, is_name, new_run_id
from windlass.launcher.prepare import Options, Prepared, prepare_file
from windlass.runs.home import Home
from windlass.sites.profile import Profile
from windlass.spec import Sweep
from windlass.tune.executors.runs.trial_template import TrialTemplate, overrides_of
from windlass.tune.space import Space
from windlass.tune.sweep.declared import at_place
from windlass.tune.sweep.head import setup_of
from windlass.tune.sweep.record import SweepRecord, sweeps_folder

__all__ = ["PreparedSweep", "check_keep", "prepare_sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSweep:
    """Sweep that has been read, planned and checked.

    Attributes:
        example: a first trial as it would be launched.
    """

    record: SweepRecord
    prepared: Prepared
    template: TrialTemplate
    example: Prepared

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.record.name

    @property
    def folder(self) -> Path:
        """Folder for the state of the sweep."""
        return sweeps_folder(self.prepared.home) / self.name

    def create(self) -> Path:
        """Write the files that heads need, and return the sweep's folder.

        Raises:
            PreconditionError: a sweep of that name already exists.
        """
        folder = self.folder
        try:
            folder.mkdir(parents=True, mode=0o700)
        except FileExistsError as error:
            raise PreconditionError(
                f"the sweep `{self.name}` already exists",
                hint=f"windlass sweep resume {self.name}, or launch with another --name",
                code="already-exists",
            ) from error
        self.template.write(folder)
        self.record.write(folder)
        return folder


def prepare_sweep(
    path: Path,
    overrides: Sequence[str] = (),
    options: Options | None = None,
    *,
    name: str = "",
    home: Home | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> PreparedSweep:
    """Read a file, pin and plan its experiment, and check its sweep, including a first trial.

    Args:
        name: name of the sweep; empty to derive it from the experiment's name.
        log: called with a line before each network request.

    Raises:
        WindlassError: the file, the space, a pin or the plan of a trial is invalid; nothing was created.
    """
    prepared = prepare_file(path, overrides, options, home=home, log=log)
    sweep, origins = prepared.experiment.sweep, prepared.origins
    if sweep is None:
        problem = Problem(
            f"{path} has no `sweep:`",
            "missing-key",
            SourcePlace(str(path)),
            "add `sweep: {metric: loss, mode: min, samples: 20, space: {lr: {loguniform: [1e-5, 1e-1]}}}`",
        )
        raise SpecError([problem])
    name = name or new_run_id(prepared.experiment.name)
    if not is_name(name):
        problem = Problem(f"invalid sweep name `{name}`", "invalid-name", None, NAME_RULE)
        raise SpecError([problem])
    template = TrialTemplate.of(prepared, name)
    record = SweepRecord(name=name, sweep=sweep, file=str(path.absolute()), place=_place_of(prepared))
    _check_overrides(sweep, overrides)
    check_keep(sweep, prepared.plan.site.profile, origins)
    with at_place(origins, "sweep"):
        setup = setup_of(record, template, prepared.home, origins)
    example = _example(sweep, setup.space, template, prepared, origins)
    return PreparedSweep(record=record, prepared=prepared, template=template, example=example)


def _check_overrides(sweep: Sweep, overrides: Sequence[str]) -> None:
    """Check that no override sets a name that the sweep varies, because no trial would use it.

    Raises:
        SpecError: an override does (`conflicting-options`).
    """
    varied = {name if "." in name else f"params.{name}" for name in sweep.space}
    for override in overrides:
        path = override.partition("=")[0]
        if path in varied:
            message = f"the sweep varies `{path}`, so no trial would have this value"
            hint = "leave it out, or remove it from `sweep.space`"
            raise SpecError(
                [Problem(message, "conflicting-options", SourcePlace("command line", excerpt=override), hint)]
            )


def check_keep(sweep: Sweep, profile: Profile | None, origins: Mapping[str, SourcePlace]) -> None:
    """Check that this head can delete checkpoints at the site, which `keep` requires.

    Raises:
        SpecError: the site is reached over ssh (`unsupported-setting`).
    """
    if sweep.keep.best and profile is not None and profile.ssh:
        message = f"`keep: {{best: {sweep.keep.best}}}` is not supported at {profile.name}, which is reached over ssh"
        hint = f"leave it out, or launch the sweep on a login node of {profile.name}"
        raise SpecError([Problem(message, "unsupported-setting", origins.get("sweep.keep"), hint)])


def _place_of(prepared: Prepared) -> str:
    """Return where trials run, in the form that `--on` accepts."""
    site = prepared.plan.site
    return f"{site.name}/{site.partition}" if site.partition else site.name


def _example(
    sweep: Sweep,
    space: Mapping[str, Any],
    template: TrialTemplate,
    prepared: Prepared,
    origins: Mapping[str, SourcePlace],
) -> Prepared:
    """Plan one trial, so that an invalid name or value is found before anything starts."""
    if sweep.trainable:
        return prepared
    with at_place(origins, "sweep.space"):
        config, _ = Space(space).draw(sweep.seed, 0)
        overrides = overrides_of(config)
    try:
        return template.prepared(overrides, prepared.home)
    except SpecError as error:
        raise SpecError([_of_the_space(problem, overrides, origins) for problem in error.problems]) from error


def _of_the_space(problem: Problem, overrides: Sequence[str], origins: Mapping[str, SourcePlace]) -> Problem:
    """Move a problem with a trial's override to the position of its name in the file's space."""
    for override in overrides:
        path = override.partition("=")[0]
        if problem.place is not None and problem.place.excerpt.startswith(f"{path}="):
            for name in (path, path.removeprefix("params.")):
                place = origins.get(f"sweep.space.{name}") or origins.get(f'sweep.space."{name}"')
                if place is not None:
                    return dataclasses.replace(problem, place=place)
    return problem
