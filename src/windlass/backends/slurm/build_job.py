"""Job that builds an environment on a compute node, for sites whose login nodes are different."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from windlass.backends.site_shell import SiteShell
from windlass.backends.slurm.client import SlurmClient
from windlass.backends.slurm.render import option_lines, share_options, time_option, where_options
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.sites.profile import Partition, Profile
from windlass.supervise.job import QueueRequest
from windlass.supervise.slurm.job_listing import program_path

__all__ = ["BuildJob", "build_script", "ensure_build_queued"]

_TIME_S = 4 * 3600.0
_CPUS = 16
_MEMORY_BYTES = 64 << 30
# Slurm stores a job's variables in its state folder, so none may hold a secret.
_EXPORTED = ("HOME", "USER", "LOGNAME", "PATH", "SHELL", "LANG", "UV_CACHE_DIR", "UV_OFFLINE", "UV_PYTHON_INSTALL_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """Environment to build in a job, and where to queue that job.

    Attributes:
        key: the environment's key; jobs of one key share a name, so a second client finds the first client's job.
        recipe: path of the builder's recipe, as the site sees it.
        envs: folder of the environments.
        archive: the zipapp.
        account: empty for the scheduler's default.
    """

    key: str
    recipe: PurePosixPath
    envs: PurePosixPath
    archive: PurePosixPath
    partition: str = ""
    qos: str = ""
    account: str = ""

    @property
    def name(self) -> str:
        """Return the job's name."""
        return f"windlass-build-{self.key[:16]}"


def build_script(job: BuildJob, profile: Profile) -> str:
    """Return the batch script, exactly as it is submitted; pure."""
    queue = _queue_of(job, profile)
    options = [
        f"--job-name={job.name}",
        f"--output={str(job.envs).replace('%', '%%')}/{job.key}.job.log",
        "--open-mode=append",
        "--requeue",
        f"--export={','.join(_EXPORTED)}",
        *time_option(queue.time_s),
        *where_options(queue),
        *share_options(queue, 1),
        *queue.options,
    ]
    builder = [profile.env.python, "-I", "-S", str(job.archive), "build", str(job.recipe), str(job.envs)]
    step = [program_path(profile.scheduler.bin, "srun"), "--nodes=1", "--ntasks=1", "--export=ALL", *builder]
    return "\n".join(["#!/bin/sh", *option_lines(options), f"exec {shlex.join(step)}", ""])


def _queue_of(job: BuildJob, profile: Profile) -> QueueRequest:
    """Return a request for enough of a node to compile quickly, with a GPU, since some imports need one."""
    scheduler, there = profile.scheduler, profile.partitions.get(job.partition, Partition())
    return QueueRequest(
        name=job.name,
        partition=job.partition,
        qos=job.qos,
        account=job.account,
        time_s=min(_TIME_S, there.time_max or _TIME_S),
        gpus_per_node=1 if there.gpus else 0,
        gpu_option=scheduler.gpu_option,
        gres_type=there.gres,
        cpus_per_node=min(_CPUS, there.cpus),
        memory_bytes=min(_MEMORY_BYTES, there.memory) if scheduler.asks_memory else 0,
        exclusive=scheduler.exclusive,
        exclude=tuple(entry.host for entry in scheduler.exclude),
        options=scheduler.options,
    )


def ensure_build_queued(job: BuildJob, profile: Profile, shell: SiteShell, variables: Mapping[str, str]) -> str:
    """Return the id of the queued or running build job for this key; if there is none, queue one. Blocking, idempotent.

    Two clients at the same time may queue two; the second job finds the environment built and exits.

    Args:
        variables: the client's variables; those that the script exports reach the job.

    Raises:
        PreconditionError: the scheduler rejected it.
        UnreachableError: the site did not respond.
    """
    commands = SlurmClient(profile, shell)
    living = [found.id for found in commands.jobs(job.name) if not found.is_over]
    if living:
        return living[0]
    argv, script = [commands.program("sbatch"), "--parsable"], build_script(job, profile).encode()
    try:
        return commands.submit(argv, _queue_of(job, profile), script=script, env=variables)
    except PreconditionError as error:
        if error.code != "slurm-refused":
            raise
        named = profile.env.build_partition
        remedy = f"is `{named}`" if named else "is not set, so the tasks' partition is used"
        raise PreconditionError(
            f"`{profile.name}` rejected the job that builds the environment: {error.message}",
            hint=f"{error.hint}; `env.build_partition` of the profile {remedy}",
            code="slurm-refused",
        ) from error
