"""What every launcher knows of a task, makes of it, and refuses in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.plan.diagnostics import spec_error
from windlass.spec import Command

__all__ = ["ADDRESS", "PORT", "RANK", "Gang", "Launch", "num_procs", "refuse_owned", "refuse_restarts"]

ADDRESS, PORT, RANK = "${leader.address}", "${leader.port}", "${rank}"
"""Tokens that the supervisor of each replica fills in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """What a launcher knows of a task.

    Attributes:
        path: the task's path in the file, for messages.
        command: the user's command; the planner's tokens are already replaced.
        procs_per_node: as the user set it; None: one per GPU, or one.
        cpus, memory_bytes: what one node may use; 0: not known.
        ready_timeout_s: longest wait for all nodes.
    """

    path: str
    command: Command
    nodes: int = 1
    gpus: int = 0
    procs_per_node: int | None = None
    cpus: float = 0.0
    memory_bytes: int = 0
    ready_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every replica executes; `${rank}` and `${leader...}` are filled in by its supervisor."""

    argv: tuple[str, ...]
    is_shell: bool
    procs_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)


def num_procs(written: str, gang: Gang, flag: str) -> int:
    default = gang.procs_per_node or gang.gpus or 1
    if not written:
        return default
    if not written.isdecimal() or int(written) < 1:
        message = f"`{flag} {written}` in {gang.path}.run is no number of processes"
        raise spec_error(message, "launcher-flag", f"remove it, and set {gang.path}.procs_per_node")
    if gang.procs_per_node not in (None, int(written)):
        message = f"`{flag} {written}` in {gang.path}.run contradicts procs_per_node={gang.procs_per_node}"
        raise spec_error(message, "launcher-flag", "keep one of them")
    return int(written)


def refuse_owned(flag: str, value: str, gang: Gang) -> None:
    message = f"`{flag} {value}` in {gang.path}.run is filled in by windlass"
    raise spec_error(message, "launcher-flag", f"remove `{flag}` from the command")


def refuse_restarts(name: str, value: str, gang: Gang) -> None:
    message = f"`--{name} {value}` in {gang.path}.run: attempts are counted by windlass, not by the launcher"
    raise spec_error(message, "launcher-flag", f"remove it, and write `retry: {{failed: {value}}}`")
