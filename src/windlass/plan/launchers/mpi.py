"""mpi: the command on the first replica with a file of all hosts, for mpirun, deepspeed and their like."""

from __future__ import annotations

from windlass.plan.launchers.gang import Gang, Launch
from windlass.plan.launchers.wrapping import wrap

__all__ = ["launch_mpi"]


def launch_mpi(gang: Gang) -> Launch:
    """`windlass.pyz mpi`: `${hostfile}` and WINDLASS_HOSTFILE name the file, with `procs_per_node` slots per host."""
    procs = gang.procs_per_node or gang.gpus or 1
    argv, is_shell = wrap("mpi", {"slots": procs}, gang)
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=procs, env={"WINDLASS_HOSTFILE": "${hostfile}"})
