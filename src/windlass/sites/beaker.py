"""Beaker section of a profile: workspace, clusters, image, and storage for jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, OneOrMany
from windlass.core.dataclass import dataclass
from windlass.core.names import nearest

if TYPE_CHECKING:
    from windlass.sites.profile import Profile

__all__ = ["BEAKER_PRIORITIES", "BeakerMount", "BeakerPlace", "Brought", "beaker_findings", "mounts_of"]

BEAKER_PRIORITIES = ("low", "normal", "high", "urgent", "immediate")
"""Beaker's priorities. Source: beaker-py 2.8.1, `BeakerJobPriority`."""

_IMAGE = re.compile(r"(?:beaker|docker):\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerMount:
    """Storage for jobs: a Weka bucket, or a folder on the machines."""

    path: Annotated[str, Doc("Path inside the job.")]
    weka: Annotated[str, Doc("Weka bucket.")] = ""
    host_path: Annotated[str, Doc("Folder on the machines.")] = ""
    sub_path: Annotated[str, Doc("Subfolder to mount; empty mounts all of it.")] = ""
    read_only: Annotated[bool, Doc("Mount it read-only.")] = False
    clusters: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Clusters that have it; empty means all. A job gets it only if all of its clusters have it."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerPlace:
    """Defaults for Beaker jobs."""

    workspace: Annotated[str, Doc("Full name of the workspace, `ORGANIZATION/NAME`.")] = ""
    budget: Annotated[str, Doc("Budget, `ORGANIZATION/NAME`; empty: the workspace's budget.")] = ""
    clusters: Annotated[tuple[str, ...], OneOrMany(), Doc("Clusters where jobs may run.")] = ()
    image: Annotated[str, Doc("Default image: `beaker:USER/NAME` or `docker:REFERENCE`.")] = ""
    mounts: Annotated[tuple[BeakerMount, ...], Doc("Storage that is mounted in jobs.")] = ()
    priority: Annotated[Literal["low", "normal", "high", "urgent", "immediate"], Doc("Default priority.")] = "normal"
    groups: Annotated[tuple[str, ...], OneOrMany(), Doc("Groups that experiments join, by full name.")] = ()
    results: Annotated[str, Doc("Results folder in the container, which Beaker uploads.")] = "/results"
    config: Annotated[str, Doc("Configuration file of the Beaker client; empty: its default path.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Mapping from names in commands written for Beaker to names at this site."""

    paths: Annotated[
        Mapping[str, str], Doc("Folder at this site for each path prefix in such commands, such as `/weka/data`.")
    ] = field(default_factory=dict)
    clusters: Annotated[
        Mapping[str, str], Doc("Partition at this site for each Beaker cluster; `*` means any other cluster.")
    ] = field(default_factory=dict)


def mounts_of(place: BeakerPlace, clusters: Sequence[str]) -> tuple[BeakerMount, ...]:
    """Return the mounts that all of these clusters have."""
    return tuple(mount for mount in place.mounts if not mount.clusters or set(clusters) <= set(mount.clusters))


def beaker_findings(profile: Profile) -> Iterator[Diagnostic]:
    """Yield every problem in the Beaker section of a profile."""
    place = profile.beaker
    if profile.kind != "beaker":
        if place != BeakerPlace():
            hint = "write `kind: beaker`, or remove the section"
            yield "beaker", f"`beaker` has settings, but `kind: {profile.kind}`", "setting-unused", hint
        return
    for name in ("workspace", "budget"):
        yield from _full_name(f"beaker.{name}", getattr(place, name))
    for index, cluster in enumerate(place.clusters):
        yield from _full_name(f"beaker.clusters.{index}", cluster)
        if profile.partitions and cluster not in profile.partitions:
            close = nearest(cluster, list(profile.partitions))
            hint = f"did you mean `{close}`?" if close else f"clusters in `partitions`: {', '.join(profile.partitions)}"
            message = f"cluster `{cluster}` is not in `partitions`"
            yield f"beaker.clusters.{index}", message, "unknown-queue", hint
    if place.image and not _IMAGE.fullmatch(place.image):
        message = f"invalid image `{place.image}`"
        yield "beaker.image", message, "invalid-value", f"write beaker:{place.image} or docker:{place.image}"
    for index, mount in enumerate(place.mounts):
        yield from _mount(f"beaker.mounts.{index}", mount, place)
    if not place.results.startswith("/"):
        yield "beaker.results", f"`{place.results}` is not an absolute path", "invalid-value", "write `/results`"
    yield from _shared(profile)
    if profile.containers.kind != "none":
        hint = "remove `containers`: a Beaker job runs in its own image"
        yield "containers.kind", "a Beaker job already runs in a container", "setting-unused", hint


def _full_name(path: str, name: str) -> Iterator[Diagnostic]:
    if name and name.count("/") != 1:
        yield path, f"`{name}` is not a full name", "invalid-value", "write ORGANIZATION/NAME, such as `ai2/jupiter`"


def _mount(path: str, mount: BeakerMount, place: BeakerPlace) -> Iterator[Diagnostic]:
    if bool(mount.weka) == bool(mount.host_path):
        named = "both `weka` and `host_path`" if mount.weka else "neither `weka` nor `host_path`"
        message = f"the mount `{mount.path}` has {named}"
        yield path, message, "conflicting-options", "write one of them: `weka: BUCKET` or `host_path: /FOLDER`"
    for name in ("path", "host_path"):
        folder: str = getattr(mount, name)
        if folder and not folder.startswith("/"):
            yield f"{path}.{name}", f"`{folder}` is not an absolute path", "invalid-value", "start it with `/`"
    known = place.clusters
    for cluster in mount.clusters:
        if known and cluster not in known:
            yield (
                f"{path}.clusters",
                f"cluster `{cluster}` is not in `beaker.clusters`",
                "unknown-queue",
                f"known: {', '.join(known)}",
            )


def _shared(profile: Profile) -> Iterator[Diagnostic]:
    """Check that `fs.shared` is on a mount, since other folders are lost when a job ends."""
    shared = PurePosixPath(profile.fs.shared)
    if not profile.fs.shared or not profile.beaker.mounts:
        return
    for mount in profile.beaker.mounts:
        if shared.is_relative_to(mount.path):
            if mount.read_only:
                message = f"fs.shared is on the read-only mount `{mount.path}`"
                yield "fs.shared", message, "conflicting-options", "set it to a folder that jobs can write to"
            return
    message = f"`{shared}` is not on any of `beaker.mounts`, so its files would be lost when a job ends"
    paths = ", ".join(mount.path for mount in profile.beaker.mounts)
    yield "fs.shared", message, "conflicting-options", f"set it to a folder below one of: {paths}"
