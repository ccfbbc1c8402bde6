"""Destination of a launch that does not go to Beaker: the facts about the site that a conversion needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.sites.profile import Profile

__all__ = ["Destination", "destination_at", "destination_of", "is_this_machine"]

_MACHINE = ("local", "docker", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Site with the meaning of Beaker's names at that site.

    Attributes:
        name: as in `--on`, without a partition.
        kind: `local`, `docker`, `slurm` or `beaker`.
        partition: partition given on the command line; if empty, chosen by the clusters or the site.
        gpus: GPUs per node by partition; an empty name is the default partition.
        priorities: supported priorities; always includes `normal`.
        paths: folder at the site by path prefix in Beaker's jobs.
        clusters: partition by cluster name; `*` stands for any other cluster.
        present: path prefixes that are the same at the site.
    """

    name: str = "local"
    kind: str = "local"
    partition: str = ""
    gpus: Mapping[str, int | None] = field(default_factory=dict)
    priorities: frozenset[str] = frozenset({"normal"})
    paths: Mapping[str, str] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    present: tuple[str, ...] = ()

    def partitions(self, clusters: tuple[str, ...]) -> tuple[str, ...]:
        """Return the partitions to choose from for a job on these clusters; if empty, the site chooses."""
        if self.partition:
            return (self.partition,)
        if self.kind == "beaker" and len(clusters) == 1 and clusters[0] in self.gpus:
            return clusters
        found = (self.clusters.get(cluster, self.clusters.get("*", "")) for cluster in clusters)
        return tuple(dict.fromkeys(partition for partition in found if partition))

    def gpus_per_node(self, partitions: tuple[str, ...]) -> int | None:
        """Return the number of GPUs per node in the first of these partitions, or None if unknown."""
        return self.gpus.get(partitions[0] if partitions else "")

    def where(self, partitions: tuple[str, ...]) -> tuple[str, ...]:
        """Return the value of `where` for an experiment."""
        return tuple(f"{self.name}/{partition}" for partition in partitions) or (self.name,)


def is_this_machine(name: str) -> bool:
    """Return True if the site is this machine, which has no profile."""
    return name in _MACHINE


def destination_at(
    on: str, home: Path, *, paths: Mapping[str, str] | None = None, present: tuple[str, ...] = ()
) -> Destination:
    """Return the site for `--on SITE[/PARTITION]`, with the profile's translation of Beaker's names.

    Args:
        home: WINDLASS_HOME, which contains the profiles.
        paths: additional paths from the command line, which take precedence.
        present: path prefixes that are the same on this machine.

    Raises:
        UsageError: no such site.
        SpecError: its profile is invalid.
    """
    name, _, partition = on.partition("/")
    if is_this_machine(name):
        return Destination(name=name, kind="local" if name == "local" else "docker", paths=paths or {}, present=present)
    from windlass.sites.store import find_site  # lazy: imports the profiles

    return destination_of(find_site(name, home), partition=partition, paths=paths)


def destination_of(profile: Profile, *, partition: str = "", paths: Mapping[str, str] | None = None) -> Destination:
    """Return the destination that a site's profile describes.

    Args:
        partition: from the command line.
        paths: additional paths from the command line, which take precedence.
    """
    is_beaker = profile.kind == "beaker"
    return Destination(
        name=profile.name,
        kind=profile.kind,
        partition=partition,
        gpus=_gpus(profile),
        priorities=frozenset({"normal", *profile.scheduler.priority, *(_ALL if is_beaker else ())}),
        paths={**profile.brought.paths, **(paths or {})},
        clusters=profile.brought.clusters,
        present=tuple(mount.path for mount in profile.beaker.mounts) if is_beaker else (),
    )


_ALL = ("low", "high", "urgent")


def _gpus(profile: Profile) -> dict[str, int | None]:
    found = {name: partition.gpus for name, partition in profile.partitions.items()}
    only = next(iter(found)) if len(found) == 1 else ""
    return {**found, "": found.get(profile.scheduler.partition or only)}
