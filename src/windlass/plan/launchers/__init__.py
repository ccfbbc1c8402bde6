"""Launchers: the command and variables of one replica, one pure function per launcher.

A replica's rank and the leader's address stay tokens (`${rank}`, `${leader.address}`), so all replicas share one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.plan.diagnostics import spec_error
from windlass.plan.launchers.gang import Gang, Launch
from windlass.plan.launchers.plain import launch_none
from windlass.spec import Command

__all__ = ["LAUNCHERS", "Gang", "Launch", "launch"]


def _torchrun(gang: Gang) -> Launch:
    from windlass.plan.launchers.torchrun import launch_torchrun  # lazy: reads commands, 6 ms of imports

    return launch_torchrun(gang)


def _accelerate(gang: Gang) -> Launch:
    from windlass.plan.launchers.accelerate import launch_accelerate  # lazy: as above

    return launch_accelerate(gang)


def _ray(gang: Gang) -> Launch:
    from windlass.plan.launchers.ray import launch_ray  # lazy: few plans have one

    return launch_ray(gang)


def _mpi(gang: Gang) -> Launch:
    from windlass.plan.launchers.mpi import launch_mpi  # lazy: as above

    return launch_mpi(gang)


def _srun(gang: Gang) -> Launch:
    from windlass.plan.launchers.srun import launch_srun  # lazy: as above

    return launch_srun(gang)


LAUNCHERS: Mapping[str, Callable[[Gang], Launch]] = {
    "none": launch_none,
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "ray": _ray,
    "mpi": _mpi,
    "srun": _srun,
}


def launch(launcher: str, gang: Gang) -> Launch:
    """What every replica of the gang executes.

    Raises:
        SpecError: the launcher does not exist here, or cannot work with the command.
    """
    if launcher != "mpi" and _names_host_file(gang.command):
        message = f"`${{hostfile}}` in {gang.path}.run has no meaning with `cluster: {launcher}`"
        raise spec_error(message, "launcher-command", "write `cluster: mpi`, or remove it")
    if launcher in LAUNCHERS:
        return LAUNCHERS[launcher](gang)
    message = f"`{gang.path}.cluster: {launcher}` is not there yet on the local backend"
    raise spec_error(message, "launcher-unsupported", f"use one of: {', '.join(LAUNCHERS)}")


def _names_host_file(command: Command) -> bool:
    texts = [command] if isinstance(command, str) else command
    return any("${hostfile}" in text.replace("$${", "") for text in texts)
