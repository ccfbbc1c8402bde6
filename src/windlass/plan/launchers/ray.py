"""ray: the supervisor brings up one Ray over the nodes and runs the user's command on the first of them."""

from __future__ import annotations

from windlass.plan.launchers.gang import Gang, Launch
from windlass.plan.launchers.wrapping import wrap

__all__ = ["launch_ray"]


def launch_ray(gang: Gang) -> Launch:
    """`windlass.pyz ray` with what each node brings: GPUs and CPUs as planned, never as found on the machine.

    A count of CPUs that the plan does not know is that of the job's allocation.
    """
    options: dict[str, object] = {"scratch": "${supervisor.scratch}", "num-gpus": gang.gpus}
    if gang.cpus:
        options["num-cpus"] = max(1, int(gang.cpus))
    if gang.memory_bytes:
        options["memory"] = gang.memory_bytes
    options["join-timeout"] = f"{gang.ready_timeout_s:g}"
    argv, is_shell = wrap("ray", options, gang)
    return Launch(argv=argv, is_shell=is_shell, procs_per_node=1)
