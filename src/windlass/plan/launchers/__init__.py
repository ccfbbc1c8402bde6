"""Launchers: the command and variables of one replica, one pure function per launcher.

A replica's rank and the leader's address stay tokens (`${rank}`, `${leader.address}`), so all replicas share one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.plan.launchers.gang import Gang, Launch
from windlass.plan.launchers.plain import launch_none
from windlass.plan.refusal import refusal

__all__ = ["LAUNCHERS", "Gang", "Launch", "launch"]


def _torchrun(gang: Gang) -> Launch:
    from windlass.plan.launchers.torchrun import launch_torchrun  # lazy: reads commands, 6 ms of imports

    return launch_torchrun(gang)


def _accelerate(gang: Gang) -> Launch:
    from windlass.plan.launchers.accelerate import launch_accelerate  # lazy: as above

    return launch_accelerate(gang)


LAUNCHERS: Mapping[str, Callable[[Gang], Launch]] = {
    "none": launch_none,
    "torchrun": _torchrun,
    "accelerate": _accelerate,
}


def launch(launcher: str, gang: Gang) -> Launch:
    """What every replica of the gang executes.

    Raises:
        SpecError: the launcher does not exist here, or cannot work with the command.
    """
    if launcher in LAUNCHERS:
        return LAUNCHERS[launcher](gang)
    message = f"`{gang.path}.cluster: {launcher}` is not there yet on the local backend"
    raise refusal(message, "launcher-unsupported", f"use one of: {', '.join(LAUNCHERS)}")
