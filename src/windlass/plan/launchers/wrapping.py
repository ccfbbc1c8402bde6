"""Launchers that wrap the user's command in a program of the supervisor's zipapp.

<python> windlass.pyz ray --num-gpus=4 --driver-set=NAME=VALUE -- <the user's command>
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.plan.launchers.context import ADDRESS, PORT, Launch, LaunchContext
from windlass.plan.plan import TaskPlan

__all__ = ["launch_mpi", "launch_ray", "launch_srun", "own_role", "with_roles"]

_PROGRAM = ("${supervisor.python}", "-I", "-S", "${supervisor.archive}")


def _wrap(program: str, options: Mapping[str, object], context: LaunchContext) -> tuple[tuple[str, ...], bool]:
    """Return the argv for every replica, and whether it ends with a shell and the user's line."""
    words = [*_PROGRAM, program, *(f"--{name}={value}" for name, value in options.items()), "--"]
    if isinstance(context.command, str):
        return (*words, "/bin/sh", "-c", context.command), True
    return (*words, *context.command), False


def launch_ray(context: LaunchContext) -> Launch:
    """Run `windlass.pyz ray` with the planned GPUs and CPUs of each node.

    If the plan does not know the number of CPUs, that of the job's allocation is used.
    """
    options: dict[str, object] = {"scratch": "${supervisor.scratch}", "num-gpus": context.shape.gpus}
    if context.shape.node_cpus:
        options["num-cpus"] = max(1, int(context.shape.node_cpus))
    if context.shape.memory_bytes:
        options["memory"] = context.shape.memory_bytes
    options["join-timeout"] = f"{context.task.ready_timeout:g}"
    argv, is_shell = _wrap("ray", options, context)
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=1)


def launch_mpi(context: LaunchContext) -> Launch:
    """Run `windlass.pyz mpi`; `${hostfile}` and WINDLASS_HOSTFILE name the host file."""
    procs = context.task.procs_per_node or context.shape.gpus or 1
    argv, is_shell = _wrap("mpi", {"slots": procs}, context)
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs, env={"WINDLASS_HOSTFILE": "${hostfile}"})


def launch_srun(context: LaunchContext) -> Launch:
    """Run `windlass.pyz ranks` with `procs_per_node` processes per replica and srun's variables."""
    procs = context.task.procs_per_node or context.shape.gpus or 1
    argv, is_shell = _wrap("ranks", {"procs": procs}, context)
    env = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": PORT}
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs, env=env)


def with_roles(task: TaskPlan) -> tuple[str, ...]:
    """Return a task's argv; wrapper programs also get the variables of each role."""
    if not _is_wrapped(task):
        return task.argv
    at = len(_PROGRAM) + 1
    roles = [
        *_options("driver", task.driver_env, task.driver_unset),
        *_options("worker", task.worker_env, task.worker_unset),
    ]
    return (*task.argv[:at], *roles, *task.argv[at:])


def own_role(task: TaskPlan) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the variables to set and to unset in all processes; both are empty if they differ by role."""
    return ({}, ()) if _is_wrapped(task) else (task.driver_env, task.driver_unset)


def _is_wrapped(task: TaskPlan) -> bool:
    return task.argv[: len(_PROGRAM)] == _PROGRAM


def _options(role: str, variables: Mapping[str, str], unset: Iterable[str]) -> list[str]:
    found = [f"--{role}-set={name}={value}" for name, value in sorted(variables.items())]
    return found + [f"--{role}-unset={name}" for name in sorted(unset)]
