"""Tasks in Beaker's spec: command, variables and mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.compat.mason.clusters import Clusters
from windlass.compat.mason.options import MasonOptions
from windlass.core.errors import UsageError

__all__ = ["SECRETS", "experiment_spec", "task_mounts", "task_spec", "task_variables"]


def task_spec(
    options: MasonOptions, *, index: int, text: str, variables: list[dict[str, str]], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a task with one replica per node and the command as text for bash."""
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
    """Return priority and preemption; Beaker accepts either `preemptible` or the two newer keys."""
    resume = {"autoResume": False} if options.no_auto_resume else {}
    runtime_ns = 0 if options.min_runtime_ns is None and resume and options.preemptible else options.min_runtime_ns
    if runtime_ns is not None:
        return {"priority": options.priority, "minRuntime": runtime_ns, **resume}
    return {"priority": options.priority, **(resume or {"preemptible": options.preemptible})}


def experiment_spec(options: MasonOptions, tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the complete experiment."""
    spec: dict[str, Any] = {"version": "v2", "description": options.description, "tasks": list(tasks)}
    if options.budget is not None:
        spec["budget"] = options.budget
    return spec | {"retry": {"allowedTaskRetries": options.max_retries}}


_DEFAULTS = {
    "RAY_CGRAPH_get_timeout": "300",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "NCCL_DEBUG": "ERROR",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}

SECRETS = (
    "HF_TOKEN",
    "WANDB_API_KEY",
    "BEAKER_TOKEN",
    "OPENAI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_API_KEY",
    "AZURE_API_BASE",
    "ANTHROPIC_API_KEY",
    "SLACK_WEBHOOK_URL",
)
"""Secrets that every job gets if the workspace has them: the user's own before the workspace's."""


def task_variables(
    options: MasonOptions,
    clusters: Clusters,
    *,
    environ: Mapping[str, str],
    user: str,
    secrets: Sequence[str],
    run_id: str,
    tracker_id: str,
    is_resumable: bool,
) -> list[dict[str, str]]:
    """Return the `envVars` of a task.

    The command line overrides mason's additions, and each name occurs once.

    Args:
        options: the command line's options.
        clusters: table of known clusters.
        environ: variables of the launch; the job gets its PATH, except in `--pure_docker_mode`.
        user: name on Beaker, the prefix of the user's own secrets.
        secrets: names of the workspace's secrets.
        run_id: the launch's run id, for the folder named after it.
        tracker_id: the task's run id, for the tracker.
        is_resumable: whether a restart continues the tracker's run.
    """
    own = [_plain(name, value) for name, value in options.env]
    own += [_secret(name, value) for name, value in options.secret]
    said = {variable["name"] for variable in own}
    before = [_plain(name, value) for name, value in _DEFAULTS.items()]
    after = _well_known(user, secrets)
    if not options.pure_docker_mode and "PATH" in environ:
        after.append(_plain("PATH", environ["PATH"]))
    after += _of_clusters(options, clusters, run_id)
    if is_resumable:
        after += [_plain("WANDB_RUN_ID", tracker_id), _plain("WANDB_RESUME", "allow")]
    return [each for each in before if each["name"] not in said] + own + [e for e in after if e["name"] not in said]


def _plain(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _secret(name: str, secret: str) -> dict[str, str]:
    return {"name": name, "secret": secret}


def _well_known(user: str, secrets: Sequence[str]) -> list[dict[str, str]]:
    found = []
    for name in SECRETS:
        held = next((each for each in (f"{user}_{name}", name) if each in secrets), None)
        if held is not None:
            found.append(_secret(name, held))
    return found


def _of_clusters(options: MasonOptions, clusters: Clusters, run_id: str) -> list[dict[str, str]]:
    if not clusters.has_weka(options.cluster):
        return []
    lines = [*clusters.weka.variables, *(clusters.weka.multi_node_variables if options.num_nodes > 1 else ())]
    pairs = (line.partition("=") for line in lines)
    return [_plain(name, value.replace("{run_id}", run_id)) for name, _, value in pairs]


_DOCKER_SOCKET = "/var/run/docker.sock"


def task_mounts(options: MasonOptions, clusters: Clusters) -> list[dict[str, Any]]:
    """Return the `datasets` of a task: Weka if all clusters have it, then the Docker socket, then datasets.

    Raises:
        UsageError: two mounts have the same path.
    """
    made: list[dict[str, Any]] = []
    if clusters.has_weka(options.cluster):
        buckets = {each.bucket: each.path for each in clusters.weka.mounts}
        for bucket in options.extra_weka_buckets:
            buckets.setdefault(bucket, f"{clusters.weka.root}{bucket}")
        made += [{"source": {"weka": bucket}, "mountPath": path} for bucket, path in buckets.items()]
    if options.mount_docker_socket:
        made.append({"source": {"hostPath": _DOCKER_SOCKET}, "mountPath": _DOCKER_SOCKET})
    made += [{"source": {"beaker": each.dataset}, "mountPath": each.mount_path} for each in options.beaker_datasets]
    _check(made)
    return made


def _check(mounts: list[dict[str, Any]]) -> None:
    paths = [mount["mountPath"].rstrip("/") for mount in mounts]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        message = f"`--beaker_datasets` mounts at `{twice}`, where another mount is already"
        raise UsageError(message, hint="give the dataset another path", code="conflicting-options")
