"""Registry of launchers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.plan.diagnostics import spec_error
from windlass.plan.launchers.context import ADDRESS, PORT, RANK, Launch, LaunchContext
from windlass.plan.launchers.wrapping import launch_mpi, launch_ray, launch_srun
from windlass.spec import Command

__all__ = ["LAUNCHERS", "launch"]


def _launch_none(context: LaunchContext) -> Launch:
    """Start one process per node, with its rank in the variables that `torch.distributed` reads."""
    env = {
        "RANK": RANK,
        "WORLD_SIZE": str(context.shape.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": RANK,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": PORT,
    }
    if isinstance(context.command, str):
        return Launch(argv=("/bin/sh", "-c", context.command), is_shell=True, procs_per_node=1, env=env)
    return Launch(argv=tuple(context.command), is_shell=False, procs_per_node=1, env=env)


def _torchrun(context: LaunchContext) -> Launch:
    from windlass.plan.launchers.torchrun import launch_torchrun  # lazy: imports the command parser, 6 ms

    return launch_torchrun(context)


def _accelerate(context: LaunchContext) -> Launch:
    from windlass.plan.launchers.accelerate import launch_accelerate  # lazy: as above

    return launch_accelerate(context)


LAUNCHERS: Mapping[str, Callable[[LaunchContext], Launch]] = {
    "none": _launch_none,
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "ray": launch_ray,
    "mpi": launch_mpi,
    "srun": launch_srun,
}


def launch(launcher: str, context: LaunchContext) -> Launch:
    """Return the command that every replica runs.

    Raises:
        SpecError: the launcher cannot start the command.
    """
    if launcher != "mpi" and _names_host_file(context.command):
        message = f"`${{hostfile}}` in {context.path}.run cannot be used with `cluster: {launcher}`"
        raise spec_error(message, "launcher-command", "write `cluster: mpi`, or remove it")
    return LAUNCHERS[launcher](context)


def _names_host_file(command: Command) -> bool:
    texts = [command] if isinstance(command, str) else command
    return any("${hostfile}" in text.replace("$${", "") for text in texts)
