"""No launcher: one process per node, as it is."""

from __future__ import annotations

from windlass.plan.launchers.gang import ADDRESS, PORT, RANK, Gang, Launch

__all__ = ["launch_none"]


def launch_none(gang: Gang) -> Launch:
    """One process per node, started as it is; it finds its rank in the variables of `torch.distributed`."""
    env = {
        "RANK": RANK,
        "WORLD_SIZE": str(gang.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": RANK,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": PORT,
    }
    if isinstance(gang.command, str):
        return Launch(argv=("/bin/sh", "-c", gang.command), is_shell=True, procs_per_node=1, env=env)
    return Launch(argv=tuple(gang.command), is_shell=False, procs_per_node=1, env=env)
