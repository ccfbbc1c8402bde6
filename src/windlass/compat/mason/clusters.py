"""Mason's table of clusters (clusters.json): storage, and which clusters have a fast network between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.json_text import read_json

__all__ = ["Bucket", "Clusters", "Google", "Weka", "known_clusters"]

_FILE = Path(__file__).with_name("clusters.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Weka bucket and its path in jobs."""

    bucket: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weka:
    """Clusters with Weka: its mounts, and variables for caches and for jobs on several nodes."""

    clusters: tuple[str, ...]
    mounts: tuple[Bucket, ...]
    variables: tuple[str, ...]
    """NAME=VALUE; `{run_id}` stands for the run's id."""
    multi_node_variables: tuple[str, ...]
    root: str
    """Marker of a path on Weka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Google:
    """Clusters on Google Cloud: the bucket for results, and the folder for local copies of buckets."""

    clusters: tuple[str, ...]
    bucket: str
    local: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Table of the properties of all clusters."""

    weka: Weka
    google: Google
    interconnect: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all known clusters without duplicates."""
        return tuple(dict.fromkeys((*self.weka.clusters, *self.google.clusters, *self.interconnect)))

    def has_weka(self, clusters: Iterable[str]) -> bool:
        """Return True if all of these clusters have Weka."""
        return set(clusters) <= set(self.weka.clusters)

    def may_have_weka(self, clusters: Iterable[str]) -> bool:
        """Return True if one of these clusters has Weka."""
        return not set(self.weka.clusters).isdisjoint(clusters)

    def is_google(self, clusters: Iterable[str]) -> bool:
        """Return True if all of these clusters are on Google Cloud."""
        return set(clusters) <= set(self.google.clusters)

    def without_interconnect(self, clusters: Sequence[str]) -> tuple[str, ...]:
        """Return the clusters not known to have a fast network between nodes."""
        return tuple(cluster for cluster in clusters if cluster not in self.interconnect)


@cache
def known_clusters() -> Clusters:
    """Return the shipped table, which is read only once."""
    data = read_json(_FILE)
    weka, google = data["weka"], data["google"]
    return Clusters(
        weka=Weka(
            clusters=tuple(weka["clusters"]),
            mounts=tuple(Bucket(**each) for each in weka["mounts"]),
            variables=tuple(weka["variables"]),
            multi_node_variables=tuple(weka["multi_node_variables"]),
            root=weka["root"],
        ),
        google=Google(clusters=tuple(google["clusters"]), bucket=google["bucket"], local=google["local"]),
        interconnect=tuple(data["interconnect"]),
    )
