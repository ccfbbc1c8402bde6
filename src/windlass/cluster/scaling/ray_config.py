"""Configuration file of Ray's autoscaler, made from a cluster's file and checked with Ray's own validators.

The file has every key that Ray reads: its monitor dies of a missing one while `ray start` returns 0. Runs on the head, in the
Python that has Ray.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from windlass.cluster.config import HEAD, ClusterConfig, NodeGroupConfig
from windlass.core.errors import PreconditionError

__all__ = ["check_ray_config", "ray_config"]

_MODULE = "windlass.cluster.scaling.node_provider.ClusterNodeProvider"
_NEVER_S = 10 * 365 * 86400.0
_EMPTY_LISTS = (
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "initialization_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


def ray_config(config: ClusterConfig, *, cluster: str, folder: Path, is_first: bool = False) -> dict[str, Any]:
    """Return the file's content.

    Args:
        cluster: id of the cluster.
        folder: the head's folder, which the provider reads.
        is_first: whether groups have at least the nodes to start with, rather than those that always exist.
    """
    idle_s = _NEVER_S if config.idle is None else config.idle
    types = {HEAD: {**_type_of(config, HEAD, config.head), "min_workers": 0, "max_workers": 0}}
    for name, group in config.groups.items():
        least = max(group.least, group.initial) if is_first else group.least
        types[name] = {**_type_of(config, name, group), "min_workers": least, "max_workers": group.most}
    most = sum(group.most for group in config.groups.values())
    return {
        "cluster_name": cluster,
        "max_workers": most if config.max_nodes is None else config.max_nodes,
        "upscaling_speed": config.upscaling_speed,
        "idle_timeout_minutes": idle_s / 60,
        "auth": {},
        "head_node_type": HEAD,
        "available_node_types": types,
        "provider": {
            "type": "external",
            "module": _MODULE,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "worker_liveness_check": False,
            "use_internal_ips": True,
            "folder": str(folder),
        },
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _EMPTY_LISTS},
    }


def check_ray_config(content: dict[str, Any]) -> None:
    """Check a file's content with the installed Ray, as its monitor will.

    Raises:
        PreconditionError: Ray refuses it (`ray-failed`).
    """
    reader: Any = importlib.import_module("ray.autoscaler.v2.instance_manager.config")
    try:
        reader.AutoscalingConfig(content, skip_content_hash=True).get_node_type_configs()
    except Exception as error:  # Ray and jsonschema raise what they like
        version = importlib.import_module("ray").__version__
        message = f"Ray {version} refuses the configuration of its autoscaler: {str(error).splitlines()[0]}"
        raise PreconditionError(message, hint="newer versions have more settings", code="ray-failed") from error


def _type_of(config: ClusterConfig, name: str, group: NodeGroupConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"node_config": {}, "resources": _resources(config, group)}
    if group.labels:
        found["labels"] = dict(group.labels)
    if name != HEAD and group.idle is not None:
        found["idle_timeout_s"] = group.idle
    if group.priority:
        found["priority"] = group.priority
    return found


def _resources(config: ClusterConfig, group: NodeGroupConfig) -> dict[str, float]:
    """Return what Ray counts on a node before there is one; without a statement, the least that it has."""
    if group.resources:
        return dict(group.resources)
    cpus = float(os.cpu_count() or 1) if config.place.virtual is not None else 1.0
    return {"CPU": cpus, **({"GPU": float(group.gpus)} if group.gpus else {})}
