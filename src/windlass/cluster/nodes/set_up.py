"""Set-up of a group's nodes as a cluster's file states it, as fields of `NodeSpec`."""

from __future__ import annotations

from typing import Any

from windlass.cluster.config import ClusterConfig, NodeGroupConfig

__all__ = ["set_up_of"]


def set_up_of(config: ClusterConfig, group: NodeGroupConfig) -> dict[str, Any]:
    """Return commands and image of a group's nodes; those of the cluster come first."""
    return {
        "host_setup": (*config.host_setup, *group.host_setup),
        "setup": (*config.setup, *group.setup),
        "image": group.image or config.image,
        "image_options": (*config.image_options, *group.image_options),
        "image_engine": config.image_engine,
    }
