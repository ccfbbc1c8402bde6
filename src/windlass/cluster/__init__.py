"""Clusters: machines up, shared and down with one command, nothing leaked, scaled by Ray itself.

from windlass.cluster import Cluster

with Cluster.up("cluster.yaml") as cluster:
code = cluster.submit("train.py", "--lr", "0.1").wait()
"""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.cluster.api import Cluster, ClusterRun
else:
    __getattr__ = lazy_names(__name__, {"windlass.cluster.api": ("Cluster", "ClusterRun")})

__all__ = ["Cluster", "ClusterRun"]
