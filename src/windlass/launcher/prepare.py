"""Reading, pinning and planning of an experiment. Nothing is started; a dry plan writes nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import spec
from windlass.config.override import parse_override
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, SourcePlace
from windlass.launcher.sites.gpus import gpu_sites_named
from windlass.pin.code.git import Repository, open_repository
from windlass.pin.code.pinned import NO_CODE, CodePin
from windlass.pin.code.pinning import pin_code
from windlass.pin.data.pinned import DataPin
from windlass.pin.environment.pinned import NO_ENVIRONMENT, EnvironmentPin
from windlass.pin.image.pinned import NO_IMAGE, ImagePin
from windlass.plan.pins import Pins
from windlass.plan.placement import choose_site, split_place
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site, SiteResources
from windlass.runs.home import Home
from windlass.spec.load import load_experiment
from windlass.supervise.leases import local_resources

if TYPE_CHECKING:
    from windlass.launcher.preview import Preview

__all__ = [
    "Options",
    "Prepared",
    "check_added",
    "find_place",
    "pin_environment_of",
    "pin_image_of",
    "prepare",
    "prepare_file",
]

_SOURCES_HERE = ("file", "store", "run")
"""Schemes of data on this machine; other sources are queried over the network."""
_MACHINE_PLACES = {"local": "local", "docker": "docker", "podman": "docker"}
"""Names that stand for this machine, with their backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for planning and launching that are not in the experiment.

    Attributes:
        on: site to use instead of the experiment's `where`.
        snapshot: store a dirty tree exactly; `allow_dirty`: run it in place, unpinned.
        best_effort: report a limit that the place cannot enforce as a note, not an error.
        reshape: use more nodes for tasks that need more GPUs than a node has.
        debug: start every process with CUDA_LAUNCH_BLOCKING=1.
        dry_run: write nothing, not even a snapshot's objects.
    """

    on: str = ""
    snapshot: bool = False
    allow_dirty: bool = False
    best_effort: bool = False
    reshape: bool = False
    debug: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Plan, with everything that is needed to launch it from this machine.

    Attributes:
        base: folder for the experiment's relative paths.
        repository: repository of the code, if it was opened to pin the code.
    """

    experiment: spec.Experiment
    plan: Plan
    base: Path
    home: Home
    options: Options
    origins: Mapping[str, SourcePlace] = field(default_factory=dict)
    repository: Repository | None = None

    @property
    def code_folder(self) -> Path:
        """Return the path of the user's code folder; the run gets a checkout of it."""
        return _code_folder(self.experiment, self.base)


def prepare_file(
    path: Path,
    overrides: Sequence[str] = (),
    options: Options | None = None,
    *,
    home: Home | None = None,
    log: Callable[[str], None] = lambda line: None,
    preview: Preview | None = None,
) -> Prepared:
    """Read an experiment file and plan it.

    Args:
        log: called with a line before each network request, and with the progress of downloads of data whose digest
            is not known otherwise.
        preview: for a plan that is only shown: collects errors, which are raised together at the end.

    Raises:
        WindlassError: the file, a pin or the plan is refused; no files are left behind.
    """
    loaded = load_experiment(path, overrides)
    return prepare(
        loaded.value,
        path.absolute().parent,
        options,
        overrides=tuple(overrides),
        origins=loaded.origins,
        home=home,
        log=log,
        preview=preview,
    )


def prepare(
    experiment: spec.Experiment,
    base: Path,
    options: Options | None = None,
    *,
    overrides: tuple[str, ...] = (),
    origins: Mapping[str, SourcePlace] | None = None,
    home: Home | None = None,
    log: Callable[[str], None] = lambda line: None,
    preview: Preview | None = None,
) -> Prepared:
    """Pin and plan an experiment; see `prepare_file`."""
    options = options or Options()
    home = home or Home.default()
    names = (options.on,) if options.on else experiment.where
    candidates = [_with_folders(find_place(name, home), experiment) for name in names]
    part = preview or contextlib.nullcontext()
    site = candidates[0]
    with part, gpu_sites_named(candidates, home):
        site = choose_site(
            experiment, candidates, best_effort=options.best_effort, reshape=options.reshape, origins=origins
        )
    if not options.dry_run:
        check_added(site, home)
    pins, repository = _pin(experiment, base, options, home, site, log, preview)
    with part:
        pins = _with_built(experiment, pins, site, home, base, origins)
    with part, gpu_sites_named(candidates, home):
        plan = make_plan(
            experiment,
            pins,
            site,
            overrides=overrides,
            is_debug=options.debug,
            best_effort=options.best_effort,
            reshape=options.reshape,
            origins=origins or {},
        )
        _check_secrets(plan, home)
    if preview is not None:
        preview.check()
    preview_notes = preview.plan_notes() if preview is not None else ()
    plan = replace(plan, notes=(*preview_notes, *plan.notes, *_set_twice(overrides), *_unlaunchable(site, home)))
    return Prepared(
        experiment=experiment,
        plan=plan,
        base=base,
        home=home,
        options=options,
        origins=origins or {},
        repository=repository,
    )


def _set_twice(overrides: tuple[str, ...]) -> list[str]:
    """Return a note for each setting that is overridden twice, which is probably a mistake."""
    changes: dict[str, list[str]] = {}
    for override in overrides:
        changes.setdefault(parse_override(override)[0], []).append(override)
    return [
        f"{path} is set twice; the last one is used: {given[-1]}" for path, given in changes.items() if len(given) > 1
    ]


def _unlaunchable(site: Site, home: Home) -> list[str]:
    """Return a note if a launch from this machine would be refused; otherwise an empty list."""
    from windlass.launcher.remote.shared_home import state_folder_problem  # lazy: a local launch needs none of it

    problem = state_folder_problem(site, home) if site.profile is not None else None
    return [f"a launch from here is refused: {problem.problems[0].sentence}"] if problem is not None else []


def find_place(name: str, home: Home) -> Site:
    """Return the site or machine that `--on` or `where` names. Raises UsageError for an unknown name."""
    if name not in _MACHINE_PLACES:
        from windlass.sites.store import find_site  # lazy: a local launch needs no profile

        site, partition = split_place(name)
        return replace(Site.of(find_site(site, home.path)), partition=partition)
    present = local_resources()
    return Site(
        name=name,
        backend=_MACHINE_PLACES[name],
        machine=SiteResources(num_gpus=len(present.gpus), num_cpus=present.cpus, memory_bytes=present.memory_bytes),
    )


def _with_folders(site: Site, experiment: spec.Experiment) -> Site:
    """Return the site with `folders` set to the local folders that Beaker would mount."""
    if not any(task.beaker for task in experiment.tasks.values()) or site.backend in ("docker", "beaker"):
        return site
    if site.profile is not None and site.profile.ssh:
        return site
    from windlass.plan.beaker.patch import mounts_of_storage  # lazy: few experiments have Beaker settings

    return replace(site, folders=tuple(mount for mount in mounts_of_storage(experiment) if Path(mount).is_dir()))


def check_added(site: Site, home: Home) -> None:
    """Raise if the site has only a shipped profile, which has no login node, so a launch would use this machine."""
    if not site.profile_data:
        return
    from windlass.sites.store import sites_folder  # lazy: a local launch needs no profile

    if not (sites_folder(home.path) / f"{site.name}.yaml").exists():
        raise PreconditionError(
            f"site `{site.name}` is not added yet; windlass ships only a template for it",
            hint=f"windlass site add {site.name} --from {site.name} --ssh USER@LOGIN-NODE (on the site itself: without --ssh)",
            code="unknown-site",
        )


def _code_folder(experiment: spec.Experiment, base: Path) -> Path:
    return base / experiment.code


def _pin(
    experiment: spec.Experiment,
    base: Path,
    options: Options,
    home: Home,
    site: Site,
    log: Callable[[str], None],
    preview: Preview | None,
) -> tuple[Pins, Repository | None]:
    """Return the pins, and the repository of the code."""
    folder, repository = _code_folder(experiment, base), None
    pins = Pins(code=NO_CODE, environment=NO_ENVIRONMENT, data={}, image=NO_IMAGE)
    part = preview or contextlib.nullcontext()
    with part:
        repository = open_repository(folder.expanduser().absolute())
        pins = replace(pins, code=_pin_code(folder, repository, options, home, preview))
    with part:
        image = functools.partial(pin_image_of, experiment, pins.code, folder, site, home, log)
        named = functools.partial(_unknown_image, experiment)
        pins = replace(pins, image=image() if preview is None else preview.image(image, named))
    sources = {name: source.source for name, source in experiment.data.items() if source.source}
    sources |= {f"{name}.from": source.from_ for name, source in experiment.data.items() if ":" in source.from_}
    for name, source in sources.items():
        if preview is not None:  # report a failed pin once, not again at each use
            unknown = DataPin(name=name, source=source, digest="", size_bytes=0, kind="folder", num_files=0)
            pins = replace(pins, data={**pins.data, name: unknown})
        with part:
            pins = replace(pins, data={**pins.data, name: _pin_data(name, source, base, home, log)})
    environment = NO_ENVIRONMENT
    with part:
        environment = pin_environment_of(experiment, folder, site, log)
    return replace(pins, environment=environment), repository


def _pin_code(
    folder: Path, repository: Repository | None, options: Options, home: Home, preview: Preview | None
) -> CodePin:
    def pin(is_snapshot: bool) -> CodePin:
        return pin_code(
            folder,
            snapshot=options.snapshot or is_snapshot,
            allow_dirty=options.allow_dirty,
            write=not options.dry_run,
            store=home.cache / "code.git",
            repository=repository,
        )

    return pin(False) if preview is None else preview.code(pin, is_given=options.snapshot or options.allow_dirty)


def _unknown_image(experiment: spec.Experiment) -> ImagePin | None:
    """Return a pin without a digest for an image given by name; None if the image is built."""
    image = experiment.env.image
    if not image.name:
        return None
    return ImagePin(kind="named", name=image.name, has_own_code=image.has_own_code, network=image.network)


def pin_image_of(
    experiment: spec.Experiment,
    code: CodePin,
    folder: Path,
    site: Site,
    home: Home,
    log: Callable[[str], None] = lambda line: None,
) -> ImagePin:
    """Pin an experiment's image; `log` gets a line before a registry is queried.

    Args:
        folder: the code folder that was pinned.
    """
    if not experiment.env.image:
        return NO_IMAGE
    from windlass.launcher.stage.image import pin_image  # lazy: most experiments have no image

    return pin_image(experiment, code, folder, site, home, log)


def _with_built(
    experiment: spec.Experiment,
    pins: Pins,
    site: Site,
    home: Home,
    base: Path,
    origins: Mapping[str, SourcePlace] | None,
) -> Pins:
    if not any(source.is_built for source in experiment.data.values()):
        return pins
    from windlass.launcher.stage.prepared_data import with_built  # lazy: most experiments build no data

    return with_built(experiment, pins, site, home, code_folder=_code_folder(experiment, base), origins=origins)


def pin_environment_of(
    experiment: spec.Experiment, folder: Path, site: Site, log: Callable[[str], None] = lambda line: None
) -> EnvironmentPin:
    """Pin an experiment's environment; `folder` holds the code.

    A site's own interpreter is inspected over ssh.
    """
    env = experiment.env
    if not env.uv and not env.python:
        return NO_ENVIRONMENT
    from windlass.pin.environment.pinning import pin_environment  # lazy: imports parsers of TOML and lock files

    if env.uv:
        return pin_environment("uv", folder / env.uv, extras=env.extras, groups=env.groups)
    if site.profile is not None and site.profile.ssh:
        from windlass.launcher.sites.python import pin_site_python  # lazy: few tasks use a site's interpreter

        log(f"asking {site.name} for its {env.python}")
        return pin_site_python(env.python, site.profile)
    return pin_environment("python", folder, python=env.python)


def _pin_data(name: str, source: str, base: Path, home: Home, log: Callable[[str], None]) -> DataPin:
    from windlass.launcher.data import data_places  # lazy: as below
    from windlass.launcher.stage.transfer_progress import (
        progress_of,  # lazy: most experiments have no data
    )
    from windlass.pin.data.pinning import pin_data  # lazy: as above

    text, places = _whole_run_id(source, home), data_places(home)
    if source.partition(":")[0] not in _SOURCES_HERE:
        log(f"data `{name}`: asking {source}")
    with progress_of(f"data `{name}` from {source}", log) as progress:
        return pin_data(name, text, base, cache=home.cache / "digests", places=places, progress=progress)


def _whole_run_id(source: str, home: Home) -> str:
    """Replace a reference such as `run:last/train` by one with the run's full id."""
    scheme, _, rest = source.partition(":")
    if scheme != "run":
        return source
    from windlass.runs.store import find  # lazy: few runs read another run's output

    run, _, path = rest.strip("/").partition("/")
    return f"run:{find(home, run).id}/{path}"


def _check_secrets(plan: Plan, home: Home) -> None:
    names = sorted(set(plan.secret_names.values()))
    if names and plan.site.backend != "beaker":  # secrets are in the Beaker workspace; a launch looks them up there
        from windlass.secrets.lookup import open_secrets  # lazy: most experiments have none

        open_secrets(home.path).require(names)
