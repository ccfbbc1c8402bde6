"""From an experiment to a plan: read, pin, plan. Nothing is started, and for a dry plan nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import config, spec
from windlass.core.errors import Place, UsageError
from windlass.core.names import nearest
from windlass.pin import NO_ENVIRONMENT, DataPin, EnvironmentPin, pin_code, pin_data
from windlass.plan import Machine, Pins, Plan, Site, make_plan
from windlass.runs.home import Home
from windlass.supervise.leases import machine

if TYPE_CHECKING:
    from windlass.launch.run import Run

__all__ = ["Options", "Prepared", "prepare", "prepare_file"]

_SITES = ("local",)
_PLANNED_SITES = ("beaker", "docker", "kubernetes", "ray", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan and launch, apart from what the experiment says.

    Attributes:
        on: the site, instead of the experiment's `where`.
        snapshot: store a dirty tree exactly; `allow_dirty`: run in place and record the truth.
        best_effort: take limits that the place cannot enforce with a note instead of an error.
        is_dry: leave nothing behind, not even a snapshot's objects.
    """

    on: str = ""
    snapshot: bool = False
    allow_dirty: bool = False
    best_effort: bool = False
    is_debug: bool = False
    is_dry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan and what is needed on this machine to carry it out.

    Attributes:
        base: folder that relative paths of the experiment are relative to.
    """

    experiment: spec.Experiment
    plan: Plan
    base: Path
    home: Home
    options: Options
    origins: Mapping[str, Place] = field(default_factory=dict)

    @property
    def code_folder(self) -> Path:
        """The user's own code folder, of which the run gets a checkout."""
        return _code_folder(self.experiment, self.base)

    def launch(self, *, log: Callable[[str], None] = lambda line: None) -> Run:
        """Carry the plan out; returns when its jobs are made.

        Args:
            log: gets progress lines (environment builds).
        """
        from windlass.launch.run import Run  # lazy: a plan alone needs neither
        from windlass.launch.start import start_run  # lazy: as above

        return Run(start_run(self, log=log), self.home)


def prepare_file(
    path: Path, overrides: Sequence[str] = (), options: Options | None = None, *, home: Home | None = None
) -> Prepared:
    """Read an experiment file and plan it.

    Raises:
        WindlassError: the file, a pin or the plan is refused; nothing was left behind.
    """
    loaded = spec.load_experiment(path, overrides)
    return prepare(
        loaded.value, path.absolute().parent, options, overrides=tuple(overrides), origins=loaded.origins, home=home
    )


def prepare(
    experiment: spec.Experiment,
    base: Path,
    options: Options | None = None,
    *,
    overrides: tuple[str, ...] = (),
    origins: Mapping[str, Place] | None = None,
    home: Home | None = None,
) -> Prepared:
    """Pin and plan an experiment; see `prepare_file`."""
    options = options or Options()
    home = home or Home.default()
    site = _site(_choose(experiment, options))
    pins = _pin(experiment, base, options, home)
    plan = make_plan(
        experiment,
        pins,
        site,
        overrides=overrides,
        is_debug=options.is_debug,
        best_effort=options.best_effort,
        origins=origins or {},
    )
    plan = replace(plan, notes=(*plan.notes, *_set_twice(overrides)))
    _check_secrets(plan, home)
    return Prepared(experiment=experiment, plan=plan, base=base, home=home, options=options, origins=origins or {})


def _set_twice(overrides: tuple[str, ...]) -> list[str]:
    """Notes on settings that several overrides change, which is hardly ever meant."""
    changes: dict[str, list[str]] = {}
    for override in overrides:
        changes.setdefault(config.parse_override(override)[0], []).append(override)
    return [f"{path} is set twice; the last counts: {given[-1]}" for path, given in changes.items() if len(given) > 1]


def _choose(experiment: spec.Experiment, options: Options) -> str:
    """The one place to plan for; several in `where` are a choice that nothing makes yet."""
    if options.on:
        return options.on
    if len(experiment.where) > 1:
        raise UsageError(
            f"`where` names {len(experiment.where)} places ({', '.join(experiment.where)}); nothing chooses among them yet",
            hint=f"choose one: --on {experiment.where[0]}",
            code="unknown-site",
        )
    return experiment.where[0]


def _site(name: str) -> Site:
    if name not in _SITES:
        close = nearest(name, _SITES)
        message = f"`{name}` is not there yet" if name in _PLANNED_SITES else f"no site `{name}`"
        hint = f"did you mean `{close}`?" if close else f"windlass runs on: {', '.join(_SITES)}"
        raise UsageError(message, hint=hint, code="unknown-site")
    present = machine()
    return Site(
        name=name,
        backend="local",
        machine=Machine(num_gpus=len(present.gpus), num_cpus=present.cpus, memory_bytes=present.memory_bytes),
    )


def _code_folder(experiment: spec.Experiment, base: Path) -> Path:
    return base / experiment.code


def _pin(experiment: spec.Experiment, base: Path, options: Options, home: Home) -> Pins:
    folder = _code_folder(experiment, base)
    code = pin_code(
        folder,
        snapshot=options.snapshot,
        allow_dirty=options.allow_dirty,
        write=not options.is_dry,
        store=home.cache / "code.git",
    )
    data = {name: _pin_data(name, source, base, home) for name, source in experiment.data.items() if source.source}
    return Pins(code=code, environment=_pin_environment(experiment, folder), data=data)


def _pin_environment(experiment: spec.Experiment, folder: Path) -> EnvironmentPin:
    env = experiment.env
    if not env.uv and not env.python:
        return NO_ENVIRONMENT
    from windlass.pin import pin_environment  # lazy: brings TOML and lock files

    if env.uv:
        return pin_environment("uv", folder / env.uv, extras=env.extras, groups=env.groups)
    return pin_environment("python", folder, python=env.python)


def _pin_data(name: str, source: spec.DataSource, base: Path, home: Home) -> DataPin:
    return pin_data(name, source.source, base, cache=home.cache / "digests")


def _check_secrets(plan: Plan, home: Home) -> None:
    names = sorted({use.name for task in plan.tasks for use in task.secrets})
    if names:
        from windlass.secrets import open_secrets  # lazy: most experiments have none

        open_secrets(home.path).require(names)
