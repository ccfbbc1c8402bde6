"""srun: one process per GPU, without a launcher of its own."""

from __future__ import annotations

from windlass.plan.launchers.gang import ADDRESS, PORT, Gang, Launch
from windlass.plan.launchers.wrapping import wrap

__all__ = ["launch_srun"]


def launch_srun(gang: Gang) -> Launch:
    """`windlass.pyz ranks`: `procs_per_node` processes per replica, placed by the variables that srun sets."""
    procs = gang.procs_per_node or gang.gpus or 1
    argv, is_shell = wrap("ranks", {"procs": procs}, gang)
    env = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": PORT}
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs, env=env)
