"""Storage of a task beside its image: Weka, the host's Docker, datasets."""

from __future__ import annotations

from typing import Any

from windlass.compat.mason.clusters import Clusters
from windlass.compat.mason.options import MasonOptions
from windlass.core.errors import UsageError

__all__ = ["task_mounts"]

_DOCKER_SOCKET = "/var/run/docker.sock"


def task_mounts(options: MasonOptions, clusters: Clusters) -> list[dict[str, Any]]:
    """`datasets` of a task: Weka where all its clusters have it, then the Docker socket, then datasets.

    Raises:
        UsageError: a dataset is mounted where one of the others is.
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
        message = f"`--beaker_datasets` mounts at `{twice}`, where something else is mounted"
        raise UsageError(message, hint="give the dataset another path", code="options-conflict")
