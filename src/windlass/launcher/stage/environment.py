"""Environments at a site, built before a run is queued, or by a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.backends.slurm.build_job import BuildJob, ensure_build_queued
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json
from windlass.launcher.sites.places import SiteBuild, SitePlaces, entries_at_site, found_environment
from windlass.pin.environment.driver import check_driver, look_at_driver
from windlass.pin.environment.pinned import BuiltEnvironment, EnvironmentPin
from windlass.pin.environment.project import read_manifest
from windlass.pin.environment.recipe import ProjectFiles, make_recipe
from windlass.sites.profile import Partition, Profile
from windlass.supervise.builds.once import READY
from windlass.supervise.builds.recipe import AIMING_VARIABLES, EnvironmentRecipe

__all__ = ["SiteBuild", "SitePlaces", "ensure_site_environment"]

_BUILD_TIMEOUT_S = 5 * 3600.0
_LOOK_TIMEOUT_S = 120.0


def ensure_site_environment(
    pin: EnvironmentPin,
    *,
    profile: Profile,
    partition: str,
    shell: SiteShell,
    places: SitePlaces,
    account: str = "",
    qos: str = "",
    log: Callable[[str], None],
) -> SiteBuild:
    """Return a run's environment at a site, building it if necessary.

    Blocking and idempotent; safe for concurrent clients.

    With `env.build: compute` it does not block: it queues a build job, or finds one in the queue.

    Args:
        partition: the tasks' partition; its `arch` and `cuda` are used.
        account, qos: the tasks' settings; a build job in another partition does not get the QOS.

    Raises:
        PreconditionError: the build failed (`build-failed`, `modules-failed`, `driver-too-old`, ...); no job
            of the run has been queued.
        UnreachableError: the site cannot be reached; a build in progress continues, and the next call finds it.
    """
    if pin.kind != "uv":
        return found_environment(pin, profile, places, shell)
    there = profile.partitions.get(partition, Partition())
    lock = _read_lock(pin, places.project)
    manifest = read_manifest(places.project)
    files = ProjectFiles(
        lock=lock, settings=manifest.settings if manifest else "", folder=places.there, tree=places.tree
    )
    arch = there.arch or _machine(shell)
    finding = look_at_driver(
        files.packages(pin), profile.env.overrides, there, partition_name=partition, arch=arch, today=_today()
    )
    check_driver(finding, profile.name)
    warnings = () if finding is None else (finding.message,)
    environment = replace(profile.env, uv=_uv(profile, shell))
    recipe = make_recipe(pin, files, environment, arch)
    answer = _builder(recipe, places, profile, shell, "--check")
    build_job = ""
    if answer.get("missing") and profile.env.build == "compute":
        job = _build_job(recipe, answer, places, profile, partition, account, qos)
        build_job = ensure_build_queued(job, profile, shell, _own_settings(shell))
        log(f"job {build_job} at {profile.name} builds the environment {recipe.key[:12]}")
    elif answer.get("missing"):
        log(f"building the environment {recipe.key[:12]} at {shell.name} (log: {places.envs / recipe.key}.log)")
        answer = _builder(recipe, places, profile, shell)
    described = _described(pin, recipe, answer, places, build_job, warnings)
    return _staged(described, profile, places, recipe.key) if recipe.is_staged else described


def _read_lock(pin: EnvironmentPin, project: Path) -> str:
    path = Path(os.path.normpath(project / pin.lock_file))
    if not path.is_file():
        raise PreconditionError(
            f"no lock file {path} in the checkout", hint="commit the lock file", code="lock-invalid"
        )
    if sha256_file(path) != pin.lock_sha256:
        raise PreconditionError(
            f"{path} differs from the lock file that was pinned", hint="plan again", code="input-changed"
        )
    return path.read_text(encoding="utf-8")


def _today() -> str:
    import time  # lazy: only needed for a profile with a driver

    return time.strftime("%Y-%m-%d", time.gmtime(SystemClock().now()))


def _machine(shell: SiteShell) -> str:
    """Return the login node's architecture, as a guess for partitions without `arch`."""
    return shell.run(["uname", "-m"]).out.strip()


def _uv(profile: Profile, shell: SiteShell) -> str:
    """Return the uv program that the profile names; on this machine, the installed one by default."""
    if not shell.is_local or profile.env.uv != "uv":
        return profile.env.uv
    from windlass.pin.environment.uv_tool import find_uv  # lazy: imports uv

    return find_uv()


def _builder(
    recipe: EnvironmentRecipe, places: SitePlaces, profile: Profile, shell: SiteShell, *options: str
) -> dict[str, Any]:
    """Run the builder at the site and return its reply."""
    argv = [profile.env.python, "-I", "-S", str(places.archive), "build", "-", str(places.envs), *options]
    timeout_s = _LOOK_TIMEOUT_S if options else _BUILD_TIMEOUT_S
    answer = shell.run(argv, stdin=recipe.to_json(), timeout_s=timeout_s, env=_own_settings(shell))
    result = _last_line(answer, profile, shell)
    if not result["ok"]:
        raise PreconditionError(
            f"site `{profile.name}`: {result['message']}", hint=str(result["hint"]), code=str(result["code"])
        )
    return result


def _own_settings(shell: SiteShell) -> dict[str, str]:
    """Return the variables for uv and proxies if the site is this machine, since the site shell passes on few."""
    if not shell.is_local:
        return {}
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("UV_") and name not in AIMING_VARIABLES) or name.lower().endswith("_proxy")
    }


def _last_line(answer: ShellResult, profile: Profile, shell: SiteShell) -> dict[str, Any]:
    last = answer.out.strip().rpartition("\n")[2]
    if last.startswith('{"ok"'):
        result: dict[str, Any] = decode_json(last)
        return result
    output = answer.err.strip().rpartition("\n")[2] or last or "no output"
    if answer.code == 127:
        raise PreconditionError(
            f"no Python `{profile.env.python}` at {shell.name}",
            hint=f"set `env.python` in the profile of `{profile.name}` to Python 3.9 or newer",
            code="python-unusable",
        )
    raise PreconditionError(
        f"the builder at {shell.name} exited {answer.code}: {output}",
        hint=f"check that `{profile.env.python}` at the site is Python 3.9 or newer",
        code="invalid-reply",
    )


def _build_job(
    recipe: EnvironmentRecipe,
    answer: Mapping[str, Any],
    places: SitePlaces,
    profile: Profile,
    partition: str,
    account: str,
    qos: str,
) -> BuildJob:
    where = profile.env.build_partition or partition
    return BuildJob(
        key=recipe.overlay_key or recipe.key,
        recipe=PurePosixPath(answer["recipe"]),
        envs=places.envs,
        archive=places.archive,
        partition=where,
        qos=qos if where == partition else "",
        account=account,
    )


def _described(
    pin: EnvironmentPin,
    recipe: EnvironmentRecipe,
    answer: Mapping[str, Any],
    places: SitePlaces,
    build_job: str,
    warnings: tuple[str, ...],
) -> SiteBuild:
    folder = Path(places.envs / recipe.key)
    overlay = Path(places.envs / recipe.overlay_key) if recipe.overlay_key else None
    has_programs = overlay is not None and (bool(build_job) or answer["overlay_has_programs"])
    facts: Mapping[str, Any] = answer.get("facts", {})
    return SiteBuild(
        built=BuiltEnvironment(
            python=folder / "bin" / "python",
            bin=folder / "bin",
            bins=(*((overlay / "bin",) if overlay is not None and has_programs else ()), folder / "bin"),
            path_entries=(*((overlay,) if overlay is not None else ()), *entries_at_site(pin, places)),
            packages=tuple(facts.get("packages", ())),
            is_hit=bool(answer.get("is_hit", False)),
        ),
        virtual_env=folder,
        environment=(overlay or folder) / READY,
        build_lock=folder.with_name(folder.name + ".lock"),
        build_job=build_job,
        facts={"recipe": recipe.facts(), "built": dict(facts)},
        warnings=warnings,
    )


def _staged(build: SiteBuild, profile: Profile, places: SitePlaces, key: str) -> SiteBuild:
    """Replace paths by those of the node-local copies, except for the overlay of the checkout's packages."""
    local = Path(profile.fs.node_local.replace("${user}", places.user)) / f"windlass-{places.user}" / key
    shared = build.built.bin
    bins = tuple(local / "bin" if each == shared else each for each in build.built.bins)
    built = replace(build.built, python=local / "bin" / "python", bin=local / "bin", bins=bins)
    return replace(build, built=built, virtual_env=local, stage=local)
