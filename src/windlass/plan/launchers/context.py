"""Input and result of launchers, and the checks that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.plan.diagnostics import spec_error
from windlass.spec import Command, Task
from windlass.supervise.job import TaskShape

__all__ = ["ADDRESS", "PORT", "RANK", "Launch", "LaunchContext", "num_procs", "refuse_owned", "refuse_restarts"]

ADDRESS, PORT, RANK = "${leader.address}", "${leader.port}", "${rank}"
"""Tokens that the supervisor of each replica fills in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """Input of a launcher: a task with its shape and command.

    Attributes:
        path: path of the task in the file, for messages.
        command: the user's command, with the planner's tokens already replaced.
    """

    path: str
    command: Command
    task: Task
    shape: TaskShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command that every replica runs; its supervisor fills in `${rank}` and `${leader...}`."""

    argv: tuple[str, ...]
    is_shell: bool
    procs_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)


def num_procs(written: str, context: LaunchContext, flag: str) -> int:
    default = context.task.procs_per_node or context.shape.gpus or 1
    if not written:
        return default
    if not written.isdecimal() or int(written) < 1:
        message = f"`{flag} {written}` in {context.path}.run is not a valid number of processes"
        raise spec_error(message, "launcher-command", f"remove it, and set {context.path}.procs_per_node")
    if context.task.procs_per_node not in (None, int(written)):
        message = f"`{flag} {written}` in {context.path}.run contradicts procs_per_node={context.task.procs_per_node}"
        raise spec_error(message, "launcher-command", "keep one of them")
    return int(written)


def refuse_owned(flag: str, value: str, context: LaunchContext) -> None:
    message = f"`{flag} {value}` in {context.path}.run is set by windlass"
    raise spec_error(message, "launcher-command", f"remove `{flag}` from the command")


def refuse_restarts(name: str, value: str, context: LaunchContext) -> None:
    message = f"`--{name} {value}` in {context.path}.run: attempts are counted by windlass, not by the launcher"
    raise spec_error(message, "launcher-command", f"remove it, and write `retry: {{failed: {value}}}`")
