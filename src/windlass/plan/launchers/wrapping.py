"""Launchers that are programs of the supervisor's own archive, around the user's command.

<python> windlass.pyz ray --num-gpus=4 --driver-set=NAME=VALUE -- <the user's command>
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.plan.launchers.gang import Gang
from windlass.plan.plan import TaskPlan

__all__ = ["own_role", "with_roles", "wrap"]

_PROGRAM = ("${supervisor.python}", "-I", "-S", "${supervisor.archive}")


def wrap(program: str, options: Mapping[str, object], gang: Gang) -> tuple[tuple[str, ...], bool]:
    """The argv of every replica, and whether the command in it is a shell with the user's line."""
    words = [*_PROGRAM, program, *(f"--{name}={value}" for name, value in options.items()), "--"]
    if isinstance(gang.command, str):
        return (*words, "/bin/sh", "-c", gang.command), True
    return (*words, *gang.command), False


def with_roles(task: TaskPlan) -> tuple[str, ...]:
    """The argv of a planned task; one that is wrapped tells the program the variables of each role."""
    if not _is_wrapped(task):
        return task.argv
    at = len(_PROGRAM) + 1
    roles = [
        *_options("driver", task.driver_env, task.driver_unset),
        *_options("worker", task.worker_env, task.worker_unset),
    ]
    return (*task.argv[:at], *roles, *task.argv[at:])


def own_role(task: TaskPlan) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Variables that every process gets, or does not, because all run the user's command; none where roles differ."""
    return ({}, ()) if _is_wrapped(task) else (task.driver_env, task.driver_unset)


def _is_wrapped(task: TaskPlan) -> bool:
    return task.argv[: len(_PROGRAM)] == _PROGRAM


def _options(role: str, variables: Mapping[str, str], unset: Iterable[str]) -> list[str]:
    found = [f"--{role}-set={name}={value}" for name, value in sorted(variables.items())]
    return found + [f"--{role}-unset={name}" for name in sorted(unset)]
