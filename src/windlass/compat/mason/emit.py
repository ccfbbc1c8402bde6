"""Beaker's specification of a mason launch, as plain data with Beaker's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.compat.mason.options import MasonOptions

__all__ = ["experiment_spec", "task_spec"]


def task_spec(
    options: MasonOptions, *, index: int, text: str, variables: list[dict[str, str]], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a task: the command as text for bash, on as many replicas as there are nodes."""
    place = {"hostname": list(options.hostname)} if options.hostname else {"cluster": list(options.cluster)}
    is_group = options.num_nodes > 1
    task: dict[str, Any] = {
        "image": {"beaker": options.image},
        "context": _context(options),
        "result": {"path": "/output"},
        "constraints": place,
        "name": f"{options.task_name}__{index}",
        "command": ["/bin/bash", "-c"],
        "arguments": [text],
        "envVars": variables,
        "datasets": mounts,
        "resources": {"gpuCount": options.gpus, "sharedMemory": options.shared_memory},
        "hostNetworking": not options.no_host_networking,
        "replicas": options.num_nodes,
        "leaderSelection": is_group,
    }
    if is_group:
        task |= {"propagateFailure": True, "propagatePreemption": True}
    if options.timeout_ns is not None:
        task["timeout"] = options.timeout_ns
    return task


def _context(options: MasonOptions) -> dict[str, Any]:
    """Priority and preemption; Beaker takes `preemptible` or the newer two keys, never both."""
    resume = {"autoResume": False} if options.no_auto_resume else {}
    runtime_ns = 0 if options.min_runtime_ns is None and resume and options.preemptible else options.min_runtime_ns
    if runtime_ns is not None:
        return {"priority": options.priority, "minRuntime": runtime_ns, **resume}
    return {"priority": options.priority, **(resume or {"preemptible": options.preemptible})}


def experiment_spec(options: MasonOptions, tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole experiment."""
    spec: dict[str, Any] = {"version": "v2", "description": options.description, "tasks": list(tasks)}
    if options.budget is not None:
        spec["budget"] = options.budget
    return spec | {"retry": {"allowedTaskRetries": options.max_retries}}
