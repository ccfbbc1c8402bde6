"""Batch script of a site check: modules, Python, and one process per node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from windlass.backends.slurm.render import FIND_MODULE, gpu_options, option_lines
from windlass.sites.profile import Partition, Profile
from windlass.supervise.slurm.job_listing import program_path

__all__ = ["CANNOT_SEE", "NO_PYTHON", "OLD_PYTHON", "check_script", "check_variables"]

CANNOT_SEE, NO_PYTHON, OLD_PYTHON = 81, 82, 83
"""Exit codes of the script, for nodes that cannot report anything else."""

_WALLTIME_MIN = 10
_CPUS = 4
_MIB = 1 << 20


def check_script(
    profile: Profile, partition: str, *, folder: str, archive: str, nodes: int, has_torch: bool, patience_s: float
) -> str:
    """Return the batch script of a check.

    Args:
        partition: the scheduler's default if empty.
        folder: this job's folder on the shared file system.
        archive: the zipapp at the site.
        has_torch: whether to run an all-reduce, which needs memory.
        patience_s: longest wait in the queue, after which Slurm cancels the job even if the client is gone.
    """
    there = profile.partitions.get(partition, Partition())
    walltime_min = min(_WALLTIME_MIN, int((there.time_max or 3600) // 60) or 1)
    options = [
        "--job-name=windlass-check",
        "--chdir=/",  # not the check's folder, because a node that cannot see it must report that
        "--output=/dev/null",
        "--no-requeue",
        "--export=ALL",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--time={walltime_min}",
        f"--deadline=now+{int(patience_s) + (walltime_min + 1) * 60}",
        *_resource_options(profile, partition, there, has_torch=has_torch),
        *profile.scheduler.options,
    ]
    srun = [
        program_path(profile.scheduler.bin, "srun"),
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--mpi=none",
        "--input=none",
        "--export=ALL",
    ]
    python = shlex.quote(profile.env.python)
    lines = [
        "#!/bin/sh",
        *option_lines(options),
        f"d={shlex.quote(folder)}",
        f'[ -r "$d/check.json" ] || exit {CANNOT_SEE}',
        'exec >>"$d/job.out" 2>&1',
        *_modules(profile),
        f"command -v {python} >/dev/null || exit {NO_PYTHON}",
        f"{python} -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' || exit {OLD_PYTHON}",
        f'exec {shlex.join(srun)} {python} -I -S {shlex.quote(archive)} check "$d"',
    ]
    return "\n".join(lines) + "\n"


def _resource_options(profile: Profile, partition: str, there: Partition, *, has_torch: bool) -> Iterator[str]:
    scheduler = profile.scheduler
    asked = {"partition": partition, "qos": scheduler.qos, "account": scheduler.account}
    yield from (f"--{name}={value}" for name, value in asked.items() if value)
    if scheduler.exclude:
        yield f"--exclude={','.join(exclusion.host for exclusion in scheduler.exclude)}"
    yield from gpu_options(there.gpus or 0, scheduler.gpu_option, there.gres)
    if scheduler.exclusive:
        yield "--exclusive"
        return
    if there.cpus:
        yield f"--cpus-per-task={min(_CPUS, there.cpus)}"
    if scheduler.asks_memory and there.memory and has_torch:
        yield f"--mem={min(8 << 10, there.memory // _MIB // 2)}M"


def _modules(profile: Profile) -> Iterator[str]:
    """Yield one command per module, so that a missing module can be named."""
    env = profile.env
    if env.module_init:
        yield _noting(f". {shlex.quote(env.module_init)}", f"module_init {env.module_init}")
    elif env.module_purge or env.modules:
        yield FIND_MODULE
    if env.module_purge:
        yield _noting("module purge", "module purge")
    for module in env.modules:
        yield _noting(f"module load {shlex.quote(module)}", module)


def _noting(command: str, name: str) -> str:
    return f'{{ {command}; }} >>"$d/modules.log" 2>&1 || echo {shlex.quote(name)} >>"$d/modules.missing"'


def check_variables(profile: Profile, *, nodes: int, gpus: int, tokens: Mapping[str, str]) -> dict[str, str | None]:
    """Return the environment variables that a site sets for a program on all nodes; None unsets one.

    Args:
        tokens: values of `${...}`; a variable with an unknown token is left out.
    """
    facts = {"multi-node" if nodes > 1 else "one-node", "torchrun", *(["gpu"] if gpus else [])}
    found: dict[str, str | None] = {}
    for variable in (*profile.net.vars, *profile.env.vars):
        if variable.role == "worker" or not facts >= set(variable.when):
            continue
        value = variable.value
        for name, text in tokens.items():
            value = value.replace(f"${{{name}}}", text) if value is not None else None
        if value is None or "${" not in value:
            found[variable.name] = value
    return found
