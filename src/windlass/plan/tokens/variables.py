"""Environment variables of a task's processes, by origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.plan.diagnostics import Diagnostics
from windlass.supervise.job import TaskShape

__all__ = ["beaker_variables", "check_secrets", "check_user_variables", "windlass_variables"]

_PREFIX = "WINDLASS_"
_DEVICES = "CUDA_VISIBLE_DEVICES"
_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def windlass_variables(task: str, shape: TaskShape, experiment: str, *, is_debug: bool) -> dict[str, str]:
    """Return the variables that describe a process to its code, and that disable Python's output buffering."""
    variables = {
        "WINDLASS_RUN": "${run}",
        "WINDLASS_NAME": experiment,
        "WINDLASS_TASK": task,
        "WINDLASS_ATTEMPT": "${attempt}",
        "WINDLASS_RANK": "${rank}",
        "WINDLASS_NUM_REPLICAS": str(shape.nodes),
        "WINDLASS_LEADER_ADDRESS": "${leader.address}",
        "WINDLASS_LEADER_PORT": "${leader.port}",
        "WINDLASS_NUM_GPUS": str(shape.gpus),
        "WINDLASS_CODE": "${code}",
        "WINDLASS_OUT": "${out}",
        "WINDLASS_CHECKPOINTS": "${checkpoints}",
        "PYTHONUNBUFFERED": "1",
    }
    return variables | ({_BLOCKING: "1"} if is_debug else {})


def beaker_variables(task: str, shape: TaskShape, site: str) -> dict[str, str]:
    """Return the variables that code written for Beaker reads, with windlass's ids.

    Beaker's experiment is a run, and its job is one replica of one attempt. As in Beaker, a CPU count may be fractional.

    Args:
        site: site name, used as the workspace.
    """
    task_id = f"${{run}}.{task}"
    job = task_id + ".${attempt}."
    variables = {
        "BEAKER_WORKLOAD_ID": "${run}",
        "BEAKER_EXPERIMENT_ID": "${run}",
        "BEAKER_WORKSPACE_ID": site,
        "BEAKER_TASK_ID": task_id,
        "BEAKER_JOB_ID": job + "${rank}",
        "BEAKER_JOB_KIND": "batch",
        "BEAKER_NODE_ID": "${supervisor.host}",
        "BEAKER_NODE_HOSTNAME": "${supervisor.host}",
        "BEAKER_RESULT_DATASET_ID": task_id + ".out",
        "BEAKER_ASSIGNED_GPU_COUNT": str(shape.gpus),
        "BEAKER_REPLICA_RANK": "${rank}",
        "BEAKER_REPLICA_COUNT": str(shape.nodes),
        "BEAKER_LEADER_REPLICA_HOSTNAME": "${leader.address}",
        "BEAKER_LEADER_REPLICA_NODE_ID": "${supervisor.leader_host}",
        "BEAKER_LEADER_REPLICA_JOB_ID": job + "0",
        "RESULTS_DIR": "${out}",
    }
    return variables | ({"BEAKER_ASSIGNED_CPU_COUNT": f"{shape.cpus:.15g}"} if shape.cpus else {})


def check_user_variables(variables: Mapping[str, str], path: str, diagnostics: Diagnostics, *, is_debug: bool) -> None:
    """Refuse variables that windlass itself sets."""
    for name, value in variables.items():
        where = f"{path}.{name}"
        if name.startswith(_PREFIX):
            diagnostics.add(
                where,
                f"{where}: variables that begin with {_PREFIX} are reserved",
                "reserved-variable",
                "rename it",
            )
        elif name == _DEVICES:
            hint = f"remove it, and ask for GPUs: `gpus: 1`; inside a shell line, `{_DEVICES}=0 python ...` still works"
            diagnostics.add(
                where, f"{where}: windlass leases the GPUs of a task and sets this variable", "reserved-variable", hint
            )
        elif name == _BLOCKING and is_debug and value != "1":
            message = f"{where}={value} contradicts --debug, which sets it to 1"
            diagnostics.add(where, message, "reserved-variable", "remove the variable, or leave out --debug")


def check_secrets(names: Iterable[str], diagnostics: Diagnostics) -> None:
    """Refuse secrets whose variable windlass itself sets."""
    for name in names:
        if name.startswith(_PREFIX) or name == _DEVICES:
            message = f"env.secrets: `{name}` is a variable that windlass sets"
            diagnostics.add("env.secrets", message, "reserved-variable", "store the secret under another name")
