"""Paths of our settings in Ray's cluster file, so that errors are at the user's own lines."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.cluster.config import HEAD

__all__ = ["ray_path"]

_FROM: tuple[tuple[str, str], ...] = (
    ("name", "cluster_name"),
    ("place.ssh.user", "auth.ssh_user"),
    ("place.ssh.key", "auth.ssh_private_key"),
    ("place.ssh.hosts.0", "provider.head_ip"),
    ("place.ssh.hosts", "provider.worker_ips"),
    ("place.aws.key", "auth.ssh_private_key"),
    ("place.aws.user", "auth.ssh_user"),
    ("place.aws.region", "provider.region"),
    ("place.aws.zones", "provider.availability_zone"),
    ("place.aws.tags", "provider.tags"),
    ("place", "provider"),
    ("idle", "idle_timeout_minutes"),
    ("max_nodes", "max_workers"),
    ("image", "docker.image"),
    ("image_options", "docker.run_options"),
    ("image_engine", "docker.use_podman"),
    ("head.image", "docker.head_image"),
    ("head.image_options", "docker.head_run_options"),
    ("head", "head_node"),
    ("groups", "worker_nodes"),
    ("files", "file_mounts"),
)
"""Our settings, and the keys of Ray's file that they come from, where names differ."""
_OF_TYPES = {
    "min": "min_workers",
    "max": "max_workers",
    "types": "node_config",
    "options": "node_config",
    "image": "docker.worker_image",
    "image_options": "docker.worker_run_options",
}
_OF_HEAD = {**_OF_TYPES, "image": "docker.head_image", "image_options": "docker.head_run_options"}


def ray_path(path: str, types: Mapping[str, str]) -> str:
    """Return the path in Ray's file of what became a setting of ours.

    Args:
        types: paths of node types, by group.
    """
    for name, kind in types.items():
        ours = HEAD if name == HEAD else f"groups.{name}"
        if path == ours or path.startswith(f"{ours}."):
            key = path[len(ours) + 1 :].partition(".")[0]
            inner = (_OF_HEAD if name == HEAD else _OF_TYPES).get(key, key)
            return f"{kind}.{inner}" if inner else kind
    for ours, theirs in _FROM:
        if path == ours or path.startswith(f"{ours}."):
            return theirs
    return path
