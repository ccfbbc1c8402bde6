"""Rendering of job.json from a plan, with late tokens replaced by the values of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass
from windlass.core.errors import InternalError, PreconditionError
from windlass.plan.launchers.wrapping import own_role, with_roles
from windlass.plan.pins import built_name
from windlass.plan.plan import Plan, TaskPlan
from windlass.plan.tokens.resolve import fill_tokens
from windlass.supervise.job import (
    BeakerRequest,
    ContainerConfig,
    Fencing,
    JobDocument,
    JobPaths,
    QueueRequest,
    ReplicaCommand,
    SiteSettings,
)

if TYPE_CHECKING:
    from windlass.sites.profile import Profile

__all__ = ["RunPaths", "job_document", "replica_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """Absolute paths for one run, on the machine where its jobs run.

    Attributes:
        run: the run's id.
        code: folder of the code in the run's checkout; the value of `${code}`.
        cwd: working folder of commands; `code` if None.
        data: path of each data entry.
        path: folders to prepend to PATH, the environment's `bin` first.
        python_path: folders and archives to prepend to PYTHONPATH.
        virtual_env: the environment's folder, for VIRTUAL_ENV; None without a virtual environment.
        lease: folder with the table of leases; None if nothing is leased.
        delivery: file with the secret values; None without secrets.
        environment: file that exists once the environment is built; None if there is nothing to wait for.
        build_lock: file that a build of the environment keeps locked.
        stage: node-local folder for a copy of the environment; None if it is not copied.
        build_job: scheduler's id of the job that builds the environment, before the run's jobs.
        image: image reference for containers; the plan's if empty.
        engine: variables that select a container engine on this machine.
        state: windlass's state folder at a site.
        user: the user's name at a site.
        secrets: Beaker's secret name by windlass's secret name, at a Beaker site.
    """

    run: str
    run_dir: Path
    code: Path
    cwd: Path | None = None
    data: Mapping[str, Path] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    virtual_env: Path | None = None
    lease: Path | None = None
    delivery: Path | None = None
    environment: Path | None = None
    build_lock: Path | None = None
    stage: Path | None = None
    build_job: str = ""
    image: str = ""
    engine: Mapping[str, str] = field(default_factory=dict)
    state: Path | None = None
    user: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)

    def out(self, task: str) -> Path:
        """Return the path of a task's output folder, which all attempts share."""
        return self.run_dir / "out" / task

    def checkpoints(self, task: str) -> Path:
        """Return the path of a task's checkpoint folder, which all attempts share."""
        return self.run_dir / "checkpoints" / task


def job_document(plan: Plan, task: TaskPlan, *, places: RunPaths, job: int, token: str) -> JobDocument:
    """Return the job document for one submission, which its supervisors read. Pure.

    Args:
        job: number of this submission of the task, starting at 1.
        token: identifies every process of the run on a machine.

    Raises:
        PreconditionError: a path cannot be inserted at its position in the command.
        InternalError: a token has no value, or a path is not absolute.
    """
    profile = plan.site.profile
    is_beaker = plan.site.backend == "beaker"
    command = replica_command(plan, task, places=places, job=job)
    return JobDocument(
        run=places.run,
        task=task.name,
        job=job,
        token=token,
        command=command,
        paths=_job_paths(task, places),
        shape=task.shape,
        settings=task.settings,
        site=SiteSettings() if profile is None else _site_settings(profile, task, is_beaker=is_beaker),
        chain=task.chain,
        queue=task.queue if profile is None else _queue(task, places, job, is_beaker=is_beaker),
        container=_container(plan, task, places, command.argv) if plan.site.backend == "docker" else ContainerConfig(),
        beaker=_beaker_request(task, places) if is_beaker else task.beaker,
    )


def replica_command(plan: Plan, task: TaskPlan, *, places: RunPaths, job: int) -> ReplicaCommand:
    """Return the command of a task's replicas, with the values of all tokens that are known before the job. Pure.

    Raises: see `job_document`.
    """
    values = _values(plan, task, places, job)
    _check_paths(task, values | ({} if places.virtual_env is None else {"VIRTUAL_ENV": str(places.virtual_env)}))
    argv = with_roles(task)
    argv = tuple(
        _fill(item, values, task, is_shell=task.is_shell and index == len(argv) - 1) for index, item in enumerate(argv)
    )
    role_env, role_unset = own_role(task)
    env = {name: _fill(value, values, task) for name, value in {**task.site_env, **role_env, **task.env}.items()}
    if places.virtual_env is not None:
        env.setdefault("VIRTUAL_ENV", str(places.virtual_env))
    return ReplicaCommand(
        argv=_building(plan, task, places, _contained(plan, task, places, argv, Path(values["out"]))),
        env=env,
        cwd=str(places.cwd or places.code),
        is_shell=task.is_shell,
        path=tuple(map(str, places.path)),
        python_path=tuple(map(str, places.python_path)),
        unset=(*task.site_unset, *role_unset),
        num_heads=1 if task.launcher in _WITH_HEAD and task.shape.nodes > 1 else 0,
        builds=built_name(task.name),
    )


def _job_paths(task: TaskPlan, places: RunPaths) -> JobPaths:
    return JobPaths(
        run_dir=str(places.run_dir),
        out=str(places.out(task.name)),
        checkpoints=str(places.checkpoints(task.name)),
        leases=str(places.lease or ""),
        delivery=str(places.delivery or ""),
        environment=str(places.environment or ""),
        build_lock=str(places.build_lock or ""),
        stage=str(places.stage or ""),
    )


def _building(plan: Plan, task: TaskPlan, places: RunPaths, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Wrap a build's command in the program that publishes its output."""
    name = built_name(task.name)
    if not name:
        return argv
    options = {
        "place": _place_of_build(name, places),
        "name": name,
        "record": places.out(task.name) / "built.json",
        "label": f"{plan.name}.{name}",
    }
    program = ("${supervisor.python}", "-I", "-S", "${supervisor.archive}", "data-build")
    return (*program, *(f"--{option}={value}" for option, value in options.items()), "--", *argv)


def _place_of_build(name: str, places: RunPaths) -> Path:
    """Return the path of a build's folder, which is named after its key."""
    return places.data[name].parent


def _contained(plan: Plan, task: TaskPlan, places: RunPaths, argv: tuple[str, ...], out: Path) -> tuple[str, ...]:
    """Wrap the command to run in the experiment's image, if the site runs containers."""
    image, profile = places.image or plan.image, plan.site.profile
    if not image or profile is None or plan.site.backend == "beaker":
        return argv
    from windlass.plan.containers import container_argv  # lazy: most tasks run without containers
    from windlass.supervise.remote.delivery import delivery_token  # lazy: as above

    cwd = places.cwd or places.code
    builds = plan.pins.builds
    data = [path for name, path in places.data.items() if name not in builds or any(str(path) in word for word in argv)]
    own = [path for path in places.python_path if path.suffix == ".pyz"]
    folders = [places.run_dir, out, *data, *(path for path in places.python_path if path not in own)]
    delivery = places.delivery
    secrets = [use.name for use in task.settings.secrets if use.is_file]
    files = [delivery.with_name(f"{delivery_token(delivery)}.{name}") for name in secrets if delivery is not None]
    return container_argv(
        profile.containers,
        image,
        argv,
        site=plan.site.name,
        cwd=cwd,
        folders=folders,
        files=[*own, *files],
        variables={
            *task.env,
            *task.site_env,
            *own_role(task)[0],
            *_IN_CONTAINERS,
            *(use.name for use in task.settings.secrets),
        },
        uses_gpus=task.shape.gpus > 0,
        has_own_code=plan.pins.image.has_own_code,
    )


def _container(plan: Plan, task: TaskPlan, places: RunPaths, argv: tuple[str, ...]) -> ContainerConfig:
    """Return the settings of a replica's container; without an image if no local engine runs it."""
    name = built_name(task.name)
    own = [places.out(task.name), places.checkpoints(task.name), places.run_dir / "journal"]
    own += [_out(task, places).parent] if name else []
    checkout = places.run_dir / "code"
    code = checkout if places.code.is_relative_to(checkout) else places.code
    builds = plan.pins.builds
    words = [*argv, *task.env.values()]
    data = [path for key, path in places.data.items() if key not in builds or any(str(path) in word for word in words)]
    shown = [places.run_dir / "out", places.run_dir / "checkpoints", *data, *places.path, *places.python_path]
    shown += [] if plan.pins.image.has_own_code else [code]
    return ContainerConfig(
        engine=plan.site.name,
        variables=places.engine,
        image=places.image or plan.image,
        name=plan.image,
        network=plan.pins.image.network,
        folders=tuple(dict.fromkeys(map(str, shown))),
        writable=tuple(map(str, own)),
        cwd=str(places.cwd or places.code),
    )


def _site_settings(profile: Profile, task: TaskPlan, *, is_beaker: bool) -> SiteSettings:
    return SiteSettings(
        host_address="",
        interface=profile.net.interface,
        inherit=(*(_SET_BY_BEAKER if is_beaker else _SET_BY_SLURM), *profile.env.forward),
        notice_s=_notice_s(profile, task, is_beaker=is_beaker),
        preflight=tuple(profile.health.preflight),
        straggler=profile.health.straggler,
        fencing=_fencing_for(profile.fs.stall),
    )


def _queue(task: TaskPlan, places: RunPaths, job: int, *, is_beaker: bool) -> QueueRequest:
    """Return the fields that only a job at a site has: queue, chain, rendezvous and fencing."""
    name = f"{places.run}-{task.name}-{job}"
    if is_beaker:
        return replace(task.queue, name=name)
    is_held = bool(task.settings.after or task.settings.evaluates) and task.chain.can_submit
    return replace(task.queue, name=f"wl-{name}", build_job=places.build_job, hold=is_held)


def _notice_s(profile: Profile, task: TaskPlan, *, is_beaker: bool) -> float:
    """Return the seconds between the scheduler's first signal and its kill."""
    partition = profile.partitions.get(task.queue.partition)
    stated = partition.notice if partition is not None else None
    if is_beaker:
        return stated or _BEAKER_NOTICE_S
    if partition is not None and partition.is_preempted and stated:
        return max(profile.scheduler.kill_wait, stated)
    return profile.scheduler.kill_wait


def _beaker_request(task: TaskPlan, places: RunPaths) -> BeakerRequest:
    """Return the request to Beaker, with the secret names that the launch looked up."""
    from windlass.plan.beaker.placement import beaker_image  # lazy: most sites do not use Beaker
    from windlass.supervise.beaker.replica import SHOWN_PREFIX  # lazy: as above

    secrets = {SHOWN_PREFIX + use.name: places.secrets.get(use.name, use.name) for use in task.settings.secrets}
    return replace(task.beaker, secrets=secrets, image=beaker_image(places.image) or task.beaker.image)


_IN_CONTAINERS = (
    "WINDLASS_JOURNAL",
    "WINDLASS_CONTROL",
    "WINDLASS_CHECKPOINT_PATTERN",
    "WINDLASS_CHECKPOINT_EVERY",
    "WINDLASS_HOSTS",
    *("WINDLASS_RESUME", "WINDLASS_TOKEN", "WINDLASS_SECRET_NAMES", "WINDLASS_SECRET_FILES", "WINDLASS_LINK"),
    *("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
)
"""Variables set by the supervisor and the scheduler, for runtimes that only pass listed variables."""

_WITH_HEAD = ("ray", "mpi")
"""Launchers whose first replica runs the command and whose other replicas serve it."""

_SET_BY_SLURM = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""Variables that the scheduler sets in every process of a job."""

_SET_BY_BEAKER = ("BEAKER_*", "CUDA_VISIBLE_DEVICES", "HF_*", "NCCL_*")
"""Variables that Beaker and the image set in every process of a job."""

_BEAKER_NOTICE_S = 30.0


def _fencing_for(stall_s: float) -> Fencing:
    """Return fencing limits that tolerate a stall of the file system for `stall_s`; 180 s gives 120, 150 and 600."""
    return Fencing(renew_s=stall_s / 36, stop_s=stall_s * 2 / 3, kill_s=stall_s * 10 / 3, quiet_s=stall_s * 5 / 6)


def _values(plan: Plan, task: TaskPlan, places: RunPaths, job: int) -> dict[str, str]:
    paths = {"out": _out(task, places), "checkpoints": places.checkpoints(task.name), "code": places.code}
    paths |= {f"data.{name}": path for name, path in places.data.items()}
    origin = _origin(plan, built_name(task.name))
    paths |= {"from": places.data[origin]} if origin else {}
    for other in plan.tasks:
        paths |= {f"tasks.{other.name}.out": places.out(other.name)}
        paths |= {f"tasks.{other.name}.checkpoints": places.checkpoints(other.name)}
    for name, path in paths.items():
        if not path.is_absolute():
            raise InternalError(f"the path for ${{{name}}} is not absolute: {path}")
    return (
        {name: str(path) for name, path in paths.items()}
        | {"run": places.run, "job": str(job)}
        | _site_tokens(plan, places)
    )


def _out(task: TaskPlan, places: RunPaths) -> Path:
    name = built_name(task.name)
    if not name:
        return places.out(task.name)
    from windlass.supervise.builds.built_data import generation_folder  # lazy: most tasks build no data

    return generation_folder(_place_of_build(name, places))


def _origin(plan: Plan, name: str) -> str:
    """Return the name of the data that a build reads as `from`; may be empty."""
    data = plan.experiment.get("data")
    entry = data.get(name) if name and isinstance(data, Mapping) else None
    origin = str(entry.get("from", "")) if isinstance(entry, Mapping) else ""
    return f"{name}.from" if ":" in origin else origin


def _site_tokens(plan: Plan, places: RunPaths) -> dict[str, str]:
    """Return the values of the tokens that a site's variables may contain."""
    profile = plan.site.profile
    if profile is None:
        return {}
    folders = {"fs.shared": profile.fs.shared, "fs.node_local": profile.fs.node_local}
    known = {name: folder.replace("${user}", places.user) for name, folder in folders.items()}
    return {**known, "user": places.user, "env.path": str(places.virtual_env or "")}


def _check_paths(task: TaskPlan, values: Mapping[str, str]) -> None:
    """Raise if a path contains `${`, since the job would replace it as a token."""
    for name, value in values.items():
        if "${" in value:
            raise PreconditionError(
                f"task `{task.name}`: the path for `{name}` contains `${{`, which would be replaced in the job: {value}",
                hint="move windlass's home or the data to a path without `${`",
                code="unsafe-insert",
            )


def _fill(text: str, values: Mapping[str, str], task: TaskPlan, *, is_shell: bool = False) -> str:
    try:
        return fill_tokens(text, values, is_shell=is_shell)
    except KeyError as error:
        raise InternalError(
            f"task `{task.name}` contains the token ${{{error.args[0]}}}, which has no value"
        ) from error
    except ValueError as error:
        hint = "move windlass's home or the data to a path without spaces and quotes"
        raise PreconditionError(f"task `{task.name}`: {error}", hint=hint, code="unsafe-insert") from error
