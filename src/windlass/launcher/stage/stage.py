"""Staging of a run before any job is submitted: checkout, environment and data."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from windlass.core.codec import encode
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic, write_json
from windlass.launcher.client import BILL, PLACES, PROVENANCE, mirror_if_remote
from windlass.launcher.prepare import Prepared
from windlass.launcher.stage.image import reference_at
from windlass.pin.code.checkouts import checkout
from windlass.pin.data.pinned import DataPlaces
from windlass.pin.environment.ensuring import ensure_environment
from windlass.pin.environment.pinned import BuiltEnvironment
from windlass.pin.image.pinned import BuiltImage
from windlass.pin.provenance import ReplicaRecord, collect, host_facts
from windlass.plan.job import RunPaths, replica_command
from windlass.plan.pins import built_name
from windlass.runs.store import RunFolder
from windlass.supervise.archive import ensure_archive
from windlass.supervise.container.engine import engine_variables
from windlass.supervise.job import ReplicaCommand

if TYPE_CHECKING:
    from windlass.backends.site_shell import SiteShell
    from windlass.launcher.sites.places import SiteBuild, SitePlaces
    from windlass.sites.profile import Profile

__all__ = ["stage_run"]


def stage_run(prepared: Prepared, run: RunFolder, log: Callable[[str], None]) -> None:
    """Stage all files of a run and record their paths. Blocks during builds."""
    code = _check_out(prepared, run)
    if prepared.plan.pins.data:
        _check_data(prepared)
    profile = prepared.plan.site.profile
    if profile is None:
        _stage_here(prepared, run, code, log)
    else:
        _stage_at_site(prepared, run, code, profile, log)


def _check_data(prepared: Prepared) -> None:
    from windlass.pin.data.pinning import check_data  # lazy: most experiments have no data

    places = DataPlaces.of(prepared.home.path)
    for pin in prepared.plan.pins.data.values():
        if not pin.is_stored:  # stored data is checked when it is staged
            check_data(pin, prepared.base, cache=prepared.home.cache / "digests", places=places)


def _check_out(prepared: Prepared, run: RunFolder) -> Path:
    """Check out the run's code and return the folder; code that runs in place is not copied."""
    return checkout(
        prepared.plan.pins.code,
        prepared.code_folder,
        run.code,
        store=prepared.home.cache / "code.git",
        repository=prepared.repository,
    )


def _project(prepared: Prepared, code: Path) -> Path:
    return code / prepared.experiment.env.uv if prepared.experiment.env.uv else code


def _stage_here(prepared: Prepared, run: RunFolder, code: Path, log: Callable[[str], None]) -> None:
    pins, home = prepared.plan.pins, prepared.home
    built = ensure_environment(pins.environment, _project(prepared, code), home.cache, log=log, tree=pins.code.tree)
    image = _image(prepared, log)
    archive = ensure_archive(home.cache / "archives")
    places = RunPaths(
        run=run.id,
        run_dir=run.path,
        code=_code_in(prepared, image, code),
        data=_data_here(prepared) | _built(prepared, home.path),
        path=built.bins,
        python_path=(*built.path_entries, archive),
        virtual_env=built.bin.parent if pins.environment.kind == "uv" else None,
        lease=home.leases,
        image=reference_at(prepared.plan, image),
        engine=engine_variables() if prepared.plan.site.backend == "docker" else {},
    )
    _write(prepared, run, places, built, {}, image)


def _image(prepared: Prepared, log: Callable[[str], None]) -> BuiltImage | None:
    """Return the tasks' image, building it if necessary; None if there is none or the site pulls it."""
    if prepared.plan.pins.image.kind == "none":
        return None
    from windlass.launcher.stage.image import ensure_run_image  # lazy: most experiments have no image

    return ensure_run_image(prepared.plan, prepared.code_folder, prepared.home, log=log)


def _code_in(prepared: Prepared, image: BuiltImage | None, code: Path) -> Path:
    """Return the path of the tasks' code: the checkout, or the image's working folder."""
    return Path(image.workdir) if image is not None and prepared.plan.pins.image.has_own_code else code


def _cwd_in(prepared: Prepared, image: BuiltImage | None) -> Path | None:
    """Return the image's working folder if a Beaker image contains the code."""
    plan = prepared.plan
    return Path() if plan.site.backend == "beaker" and plan.pins.image.has_own_code and image is None else None


def _data_here(prepared: Prepared) -> dict[str, Path]:
    if not prepared.plan.pins.data:
        return {}
    from windlass.launcher.data import data_places  # lazy: as above
    from windlass.pin.data.pinning import place_data  # lazy: as above

    places = data_places(prepared.home)
    return {name: place_data(pin, prepared.base, places) for name, pin in prepared.plan.pins.data.items()}


def _built(prepared: Prepared, state: Path) -> dict[str, Path]:
    """Return the paths of prepared data; existing data on this machine is checked again."""
    if not prepared.plan.pins.builds:
        return {}
    from windlass.launcher.stage.prepared_data import (  # lazy: most experiments build no data
        check_built,
        places_of_builds,
    )

    if state == prepared.home.path:
        check_built(prepared.plan, state)
    return places_of_builds(prepared.plan, state)


def _write(
    prepared: Prepared,
    run: RunFolder,
    places: RunPaths,
    built: BuiltEnvironment,
    facts: Mapping[str, object],
    image: BuiltImage | None,
) -> None:
    write_json(run.path / PLACES, encode(places), syncs_folder=False)  # synced with the next write
    plan = prepared.plan
    commands = {task.name: replica_command(plan, task, places=places, job=1) for task in plan.tasks}
    record = _provenance(prepared, run, commands, built, image)
    write_json(run.path / PROVENANCE, {**record, "site_environment": facts} if facts else record)


# --- at a site ----------------------------------------------------------------------------------------------------


def _stage_at_site(
    prepared: Prepared, run: RunFolder, code: Path, profile: Profile, log: Callable[[str], None]
) -> None:
    from windlass.backends.site_shell import shell_for  # lazy: a local launch needs no shell at a site
    from windlass.launcher.beaker.storage import uses_datasets

    shell = shell_for(profile)
    if shell.is_local and not uses_datasets(profile, prepared.home.path):
        data, root, state = _data_here(prepared), run.path, prepared.home.path
        archive = ensure_archive(prepared.home.cache / "archives")
        there = code
    else:
        data, root, state, archive = _ship(prepared, run, profile, shell)
        there = root / "code" / prepared.plan.pins.code.subdir
    from windlass.launcher.sites.places import SitePlaces  # lazy: as above

    places = RunPaths(
        run=run.id,
        run_dir=root,
        code=there,
        data=data | _built(prepared, Path(state)),
        python_path=(archive,),
        state=state,
        user=_user(shell),
    )
    build = _build(
        prepared,
        profile,
        shell,
        SitePlaces(
            project=_project(prepared, code),
            there=PurePosixPath(_project(prepared, there)),
            archive=PurePosixPath(archive),
            state=PurePosixPath(state),
            tree=prepared.plan.pins.code.tree,
            user=places.user,
        ),
        log,
    )
    image = _image(prepared, log)
    reference, facts = reference_at(prepared.plan, image), dict(build.facts)
    if prepared.plan.site.backend == "beaker":
        from windlass.launcher.beaker.image import image_by_id  # lazy: few sites use Beaker

        reference, more = image_by_id(prepared.plan, reference, log)
        facts |= more
    places = replace(
        places,
        code=_code_in(prepared, image, places.code),
        cwd=_cwd_in(prepared, image),
        image=reference,
        path=build.built.bins,
        python_path=(*build.built.path_entries, archive),
        virtual_env=build.virtual_env,
        environment=build.environment,
        build_lock=build.build_lock,
        stage=build.stage,
        build_job=build.build_job,
    )
    _write(prepared, run, places, build.built, facts, image)
    mirror = mirror_if_remote(run, prepared.plan, prepared.home)
    if mirror is not None:
        mirror.put([run.path / PLACES, run.path / PROVENANCE])


def _ship(
    prepared: Prepared, run: RunFolder, profile: Profile, shell: SiteShell
) -> tuple[dict[str, Path], Path, Path, Path]:
    """Send the checkout and data to the site; return the paths there of data, run, state and zipapp."""
    from windlass.launcher.beaker.storage import state_of_jobs  # lazy: as below
    from windlass.launcher.remote.mirror import (  # lazy: most sites are this machine
        data_at_site,
        mirror_at,
        state_at_site,
    )

    state = state_of_jobs(profile) if shell.is_local else state_at_site(profile, shell)
    pins, here = prepared.plan.pins.data, _data_here(prepared)
    there = {name: data_at_site(state, pins[name].digest, path) for name, path in here.items()}
    if prepared.plan.pins.code.kind == "in-place":
        raise PreconditionError(
            f"cannot run code in place at {profile.name}, which is another machine",
            hint="commit the code, or send it as it is with --snapshot",
            code="code-not-pinned",
        )
    mirror = mirror_at(run, state / "runs" / run.id, profile, prepared.home)
    mirror.ship({there[name]: path for name, path in here.items()})
    data = {name: Path(path) for name, path in there.items()}
    return data, Path(mirror.root), Path(state), Path(mirror.archive_at_site)


def _build(
    prepared: Prepared, profile: Profile, shell: SiteShell, places: SitePlaces, log: Callable[[str], None]
) -> SiteBuild:
    pin = prepared.plan.pins.environment
    if prepared.plan.site.backend == "beaker":
        from windlass.launcher.sites.places import image_environment  # lazy: as below

        return image_environment(pin, profile, None if prepared.plan.pins.image.has_own_code else places)
    if pin.kind != "uv":
        from windlass.launcher.sites.places import found_environment  # lazy: a local launch builds otherwise

        return found_environment(pin, profile, places, shell)
    from windlass.launcher.stage.environment import ensure_site_environment  # lazy: as above

    queue = next(task.queue for task in prepared.plan.tasks if not built_name(task.name))
    build = ensure_site_environment(
        pin,
        profile=profile,
        partition=queue.partition,
        shell=shell,
        places=places,
        account=queue.account,
        qos=queue.qos,
        log=log,
    )
    for warning in build.warnings:
        log(warning)
    return build


def _user(shell: SiteShell) -> str:
    """Return the user's name at the site."""
    if shell.is_local:
        return pwd.getpwuid(os.geteuid()).pw_name
    answer = shell.run(["id", "-un"])
    return answer.out.strip() if answer.code == 0 else ""


def _provenance(
    prepared: Prepared,
    run: RunFolder,
    commands: Mapping[str, ReplicaCommand],
    built: BuiltEnvironment,
    image: BuiltImage | None,
) -> dict[str, object]:
    plan = prepared.plan
    replicas = [
        ReplicaRecord(task=task.name, rank=rank, command=commands[task.name].argv, variables=commands[task.name].env)
        for task in plan.tasks
        for rank in range(task.shape.nodes)
    ]
    record = collect(
        run_id=run.id,
        spec=plan.experiment,
        overrides=plan.overrides,
        params=prepared.experiment.params,
        code=plan.pins.code,
        environment=plan.pins.environment,
        packages=built.packages,
        data=list(plan.pins.data.values()),
        replicas=replicas,
        secrets=sorted(set(plan.secret_names.values())),
        host=host_facts(),
    )
    builds = {name: encode(pin) for name, pin in plan.pins.builds.items()}
    more: dict[str, object] = {"builds": builds} if builds else {}
    if plan.pins.image.kind != "none":
        more["image"] = {**asdict(plan.pins.image), **({} if image is None else _image_facts(image, run))}
    return {**record, **more, "plan_hash": plan.plan_hash, "base": str(prepared.base)}


def _image_facts(image: BuiltImage, run: RunFolder) -> dict[str, object]:
    """Return the facts about an image for the record, and copy its cached bill of materials to the run."""
    facts = image.provenance()
    if image.sbom and Path(image.sbom).is_file():
        write_atomic(run.path / BILL, Path(image.sbom).read_bytes())
        facts["sbom"] = BILL
    return facts
