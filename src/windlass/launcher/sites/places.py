"""Paths of environments at a site, and the interpreter for tasks without an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath

from windlass.backends.site_shell import SiteShell
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.pin.environment.pinned import BuiltEnvironment, EnvironmentPin, path_entries
from windlass.sites.profile import Profile

__all__ = ["SiteBuild", "SitePlaces", "entries_at_site", "found_environment", "image_environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlaces:
    """Paths of a project on this machine and at the site.

    Attributes:
        project: the project's folder, which has the lock file, on this machine.
        there: path at the site of that folder in the run's checkout.
        archive: path of the zipapp at the site.
        state: windlass's folder on the site's shared file system; environments are in its `envs`.
        tree: id of the code tree (`CodePin.tree`).
        user: the user's name at the site.
    """

    project: Path
    there: PurePosixPath
    archive: PurePosixPath
    state: PurePosixPath
    tree: str = ""
    user: str = ""

    @property
    def envs(self) -> PurePosixPath:
        """Return the path of the folder with all environments."""
        return self.state / "envs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteBuild:
    """Environment at a site, already built or about to be built by a job.

    Attributes:
        built: its paths at the site; `packages` is empty until it is built.
        virtual_env: its folder, for VIRTUAL_ENV; None if windlass did not build it.
        environment: for `RunPaths.environment`: the file that is written last, or None if there is nothing to wait for.
        build_lock: for `RunPaths.build_lock`.
        stage: for `RunPaths.stage`: path of each node's copy, which the other paths then use; None for no copies.
        build_job: scheduler's id of the build job, on which the task's jobs depend (`afterany`); empty if built.
        facts: for the provenance: the recipe with reasons for overrides and patches, and the builder's notes.
        warnings: warnings to show before the job is queued.
    """

    built: BuiltEnvironment
    virtual_env: Path | None = None
    environment: Path | None = None
    build_lock: Path | None = None
    stage: Path | None = None
    build_job: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def found_environment(pin: EnvironmentPin, profile: Profile, places: SitePlaces, shell: SiteShell) -> SiteBuild:
    """Return the user's interpreter at the site, or else the site's own, as the environment.

    Blocks for one command at the site; raises PreconditionError if there is no such interpreter.
    """
    name = pin.interpreter if pin.kind == "python" else profile.env.python
    answer = shell.run(["sh", "-c", 'command -v "$0"', name])
    if answer.code != 0:
        raise PreconditionError(
            f"no Python `{name}` at {shell.name}",
            hint="set `env.python` to an interpreter at the site, or use `env.uv`, which is built there",
            code="python-unusable",
        )
    python = Path(answer.out.strip())
    return SiteBuild(
        built=BuiltEnvironment(
            python=python,
            bin=python.parent,
            bins=(python.parent,) if pin.kind == "python" else (),
            path_entries=entries_at_site(pin, places),
            packages=pin.packages,
            is_hit=True,
        )
    )


def image_environment(pin: EnvironmentPin, profile: Profile, places: SitePlaces | None) -> SiteBuild:
    """Return the environment that a job's image contains. Makes no request.

    Args:
        places: None if the code is in the image too.
    """
    python = Path(profile.env.python)
    entries = entries_at_site(pin, places) if places is not None else ()
    built = BuiltEnvironment(python=python, bin=python.parent, bins=(), path_entries=entries, packages=(), is_hit=True)
    return SiteBuild(built=built)


def entries_at_site(pin: EnvironmentPin, places: SitePlaces) -> tuple[Path, ...]:
    """Return the folders at the site to prepend to PYTHONPATH."""
    found = path_entries(pin, places.project)
    return tuple(Path(os.path.normpath(places.there / os.path.relpath(each, places.project))) for each in found)
