"""Queue target at a Beaker site: clusters, priority, budget and the storage that the clusters share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from windlass.core.dataclass import dataclass
from windlass.core.errors import InternalError
from windlass.core.names import nearest
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import Site
from windlass.plan.slurm.queue_target import QueueTarget
from windlass.sites.beaker import BeakerMount, mounts_of
from windlass.sites.profile import Partition, Profile
from windlass.spec import Experiment

__all__ = ["BeakerTarget", "beaker_target_of", "common_partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerTarget(QueueTarget):
    """Clusters of a site, any of which may run the jobs; `partition` is set if there is only one cluster.

    Attributes:
        clusters: full names; any cluster if empty.
        priority: Beaker's name of the priority.
        mounts: mounts that all the clusters have.
        storage: folder of `fs.shared`; if empty, only a job's results outlive it.
    """

    clusters: tuple[str, ...] = ()
    priority: str = "normal"
    is_preemptible: bool = False
    budget: str = ""
    mounts: tuple[BeakerMount, ...] = ()
    storage: str = ""

    def __str__(self) -> str:
        return f"{self.profile.name}/{self.partition}" if self.partition else self.profile.name


def beaker_target_of(experiment: Experiment, site: Site, diagnostics: Diagnostics) -> BeakerTarget:
    """Choose the clusters, priority and budget; refuse unknown clusters and missing storage."""
    profile = site.profile
    if profile is None:
        raise InternalError(f"site `{site.name}` has no profile")
    place, context = profile.beaker, experiment.context
    clusters = (_cluster(site.partition, profile, diagnostics),) if site.partition else place.clusters
    target = BeakerTarget(
        profile=profile,
        partition=clusters[0] if len(clusters) == 1 else "",
        there=common_partition(profile.partitions[name] for name in clusters if name in profile.partitions),
        clusters=clusters,
        priority=_priority(context.priority, place.priority),
        is_preemptible=bool(context.preemptible),
        budget=context.account or place.budget,
        mounts=mounts_of(place, clusters),
    )
    if not place.workspace:
        message = f"the profile of `{profile.name}` has no Beaker workspace (beaker.workspace)"
        hint = f"windlass site add {profile.name} beaker.workspace=ORGANIZATION/NAME"
        diagnostics.add("where", message, "beaker-workspace", hint)
    return replace(target, storage=_storage(target, diagnostics))


def common_partition(partitions: Iterable[Partition]) -> Partition:
    """Return the resources that the nodes of all these clusters have; unknown if one is unknown."""
    found = list(partitions)
    if len(found) < 2:
        return found[0] if found else Partition()
    gpus = [there.gpus for there in found if there.gpus is not None]
    times = [there.time_max for there in found if there.time_max is not None]
    return Partition(
        num_nodes=min(there.num_nodes for there in found),
        max_nodes=min(there.max_nodes for there in found),
        time_max=min(times, default=None),
        gpus=min(gpus) if len(gpus) == len(found) else None,
        gpu_type=_same(there.gpu_type for there in found),
        gpu_memory=min(there.gpu_memory for there in found),
        cpus=min(there.cpus for there in found),
        memory=min(there.memory for there in found),
        arch=_same(there.arch for there in found),
        cuda=_same(there.cuda for there in found),
        is_preempted=any(there.is_preempted for there in found),
    )


def _same(values: Iterable[str]) -> str:
    different = set(values)
    return different.pop() if len(different) == 1 else ""


def _cluster(name: str, profile: Profile, diagnostics: Diagnostics) -> str:
    """Return a cluster's full name; `where` may omit the organization."""
    known = list(dict.fromkeys((*profile.partitions, *profile.beaker.clusters)))
    if name in known or not known:
        return name
    ending = [full for full in known if full.rpartition("/")[2] == name]
    if len(ending) == 1:
        return ending[0]
    close = nearest(name, known) or nearest(name, [full.rpartition("/")[2] for full in known])
    listed = f"the clusters are: {', '.join(known)}"
    hint = f"did you mean --on {profile.name}/{close}? {listed}" if close else listed
    diagnostics.add("where", f"`{profile.name}` has no cluster `{name}`", "unknown-queue", hint)
    return name


def _priority(wished: str, usual: str) -> str:
    """Return the site's usual priority for `normal`, otherwise the requested one."""
    return usual if wished == "normal" else wished


def _storage(target: BeakerTarget, diagnostics: Diagnostics) -> str:
    """Return `fs.shared` if all these clusters mount it, otherwise an empty string."""
    shared = target.profile.fs.shared
    if not shared:
        return ""
    if not target.profile.beaker.mounts or _is_on(shared, target.mounts):
        return shared
    if _is_on(shared, target.profile.beaker.mounts):
        having = _clusters_with(shared, target)
        message = (
            f"fs.shared of `{target.profile.name}` is {shared}, and not all of {', '.join(target.clusters)} have it"
        )
        hint = f"--on {target.profile.name}/{having[0]}" if having else "correct `beaker.mounts` of the profile"
        diagnostics.add("where", message, "site-no-shared-folder", hint)
    return ""


def _is_on(folder: str, mounts: Sequence[BeakerMount]) -> bool:
    return any(PurePosixPath(folder).is_relative_to(mount.path) for mount in mounts)


def _clusters_with(folder: str, target: BeakerTarget) -> list[str]:
    place = target.profile.beaker
    return [name for name in place.clusters if _is_on(folder, mounts_of(place, (name,)))]
