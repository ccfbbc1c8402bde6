"""Placement at a Beaker site: clusters, shapes, image, and each task's request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.core.merge_patch import merge
from windlass.plan.beaker.patch import asked_of_beaker, kept_of_run
from windlass.plan.beaker.queue_target import BeakerTarget, beaker_target_of
from windlass.plan.bundles import bundles_of
from windlass.plan.capabilities import apply_rules
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.pins import built_name
from windlass.plan.placement_result import PlacedTask, Placement
from windlass.plan.shape import reshaped, shape_at
from windlass.plan.site import Site
from windlass.plan.slurm.nodes import check_nodes
from windlass.plan.slurm.walltime import gpu_budget
from windlass.sites.beaker import BeakerMount
from windlass.spec import Experiment, Task
from windlass.supervise.job import BeakerRequest, ChainConfig, QueueRequest, TaskShape

__all__ = ["beaker_image", "place_on_beaker"]


def place_on_beaker(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, best_effort: bool, reshape: bool
) -> Placement:
    """See `windlass.plan.placement.place_tasks`."""
    target = beaker_target_of(experiment, site, diagnostics)
    notes: list[str] = []
    if reshape:
        experiment, notes = reshaped(experiment, target.there.gpus)
    notes += apply_rules(experiment, site, diagnostics, is_best_effort=best_effort, target=target)
    shapes = {name: shape_at(name, task, target, diagnostics) for name, task in experiment.tasks.items()}
    budget, more = gpu_budget(experiment, shapes, diagnostics)
    image = _image(experiment, target, diagnostics)
    tasks = {}
    for name, shape in shapes.items():
        check_nodes(name, experiment.tasks[name], shape, target, diagnostics)
        _check_storage(name, shape, target, diagnostics)
        is_limited = not built_name(name)  # a limit applies to the user's tasks, not to data builds
        times = [time for time in (experiment.limit.time, budget.get(name)) if time is not None and is_limited]
        tasks[name] = _place_task(name, experiment, shape, min(times, default=None), target, image, diagnostics)
    more += [*_notes(experiment, shapes, target)]
    return Placement(experiment=experiment, tasks=tasks, target=target, notes=tuple(dict.fromkeys((*notes, *more))))


def beaker_image(name: str) -> str:
    """Convert an image's name to the form in `BeakerRequest`: `beaker:NAME` or `docker:REFERENCE`."""
    if name.startswith("beaker:") or not name:
        return name
    return "docker:" + name.removeprefix("docker:").removeprefix("//")


def _image(experiment: Experiment, target: BeakerTarget, diagnostics: Diagnostics) -> str:
    """Return the image's name; empty if it was refused or is not built yet."""
    asked = experiment.env.image
    name = beaker_image(asked.name) or ("" if asked else target.profile.beaker.image)
    if not name and not asked:
        message = f"Beaker jobs run in an image, and neither the experiment nor `{target.profile.name}` names one"
        hint = "env.image=beaker:USER/NAME, env.image=python:3.12 for an image of a registry, or set beaker.image in the profile"
        diagnostics.add("env.image", message, "no-image", hint)
    if asked and asked.network == "private":
        message = "env.image.network=private: Beaker jobs use the network of their machine, or one that Beaker provides"
        diagnostics.add("env.image.network", message, "unsupported-setting", "remove it: ~env.image.network")
    return name


def _check_storage(name: str, shape: TaskShape, target: BeakerTarget, diagnostics: Diagnostics) -> None:
    if shape.nodes == 1 or target.storage or target.profile.fs.shared:
        return
    message = f"task `{name}` takes {shape.nodes} nodes, and `{target.profile.name}` has no folder that all of them see"
    hint = "set `fs.shared` to a folder on one of `beaker.mounts` in the profile (a Weka bucket or a host path)"
    diagnostics.add(f"tasks.{name}.nodes", message, "site-no-shared-folder", hint + f", or tasks.{name}.nodes=1")


def _place_task(
    name: str,
    experiment: Experiment,
    shape: TaskShape,
    time_s: float | None,
    target: BeakerTarget,
    image: str,
    diagnostics: Diagnostics,
) -> PlacedTask:
    task = experiment.tasks[name]
    tries = 1 + experiment.retry.interrupted + experiment.retry.failed
    return PlacedTask(
        shape=shape,
        time_s=None if time_s is None else float(time_s),
        queue=QueueRequest(partition=target.partition, python=target.profile.env.python),
        chain=ChainConfig(
            scheduler="beaker", mode="requeue", num_links=min(tries, experiment.limit.jobs or tries), can_submit=False
        ),
        bundles=bundles_of(name, experiment, shape, diagnostics),
        beaker=_ask(experiment, task, shape, target, image),
    )


def _ask(experiment: Experiment, task: Task, shape: TaskShape, target: BeakerTarget, image: str) -> BeakerRequest:
    """Return a task's request, without the names of workspace secrets, which a launch looks up."""
    place, patch = target.profile.beaker, asked_of_beaker(task.beaker)
    more = patch.pop("datasets", None)  # a patch would replace the list, including the site's mounts
    return BeakerRequest(
        workspace=place.workspace,
        budget=target.budget,
        description=experiment.why or experiment.name,
        groups=tuple(dict.fromkeys((*place.groups, *_group(experiment)))),
        image=image,
        clusters=target.clusters,
        hostnames=task.hosts,
        priority=target.priority,
        is_preemptible=target.is_preemptible,
        datasets=(*(_dataset(mount) for mount in target.mounts), *(more if isinstance(more, list) else ())),
        results=place.results,
        experiment=kept_of_run(experiment.beaker),
        task=merge(_outlives(target), patch),
    )


def _group(experiment: Experiment) -> tuple[str, ...]:
    """Return the Beaker group if its full name is given; short names are only recorded, not sent."""
    group = experiment.context.group
    return (group,) if "/" in group else ()


def _outlives(target: BeakerTarget) -> dict[str, Any]:
    """Return the settings that disable Beaker's restarts, if a job's records are lost with its container."""
    return {} if target.storage or target.profile.fs.shared else {"context": {"autoResume": False}}


def _dataset(mount: BeakerMount) -> Mapping[str, Any]:
    """Return a mount as an entry for `datasets` in Beaker's spec, without a default `mode`."""
    source = {"weka": mount.weka} if mount.weka else {"hostPath": mount.host_path}
    entry: dict[str, Any] = {"mountPath": mount.path, "source": source}
    entry |= {"subPath": mount.sub_path} if mount.sub_path else {}
    return entry | ({"mode": "readonly"} if mount.read_only else {})


def _notes(experiment: Experiment, shapes: Mapping[str, TaskShape], target: BeakerTarget) -> Iterator[str]:
    profile = target.profile
    for group in _group(experiment):
        yield f"context.group={group}: the experiment joins this Beaker group"
    if not target.clusters:
        yield f"the profile of `{profile.name}` has no clusters (beaker.clusters): Beaker may use any cluster"
    unknown = [name for name in target.clusters if name not in profile.partitions]
    if unknown and profile.partitions:
        yield f"what the nodes of {', '.join(unknown)} have is unknown, so nothing was checked"
    missing = [mount.path for mount in profile.beaker.mounts if mount not in target.mounts]
    if missing:
        yield f"not mounted, since not all of these clusters have it: {', '.join(missing)}"
    for name, shape in shapes.items():
        if shape.nodes > 1 and shape.gpus and not profile.net.interconnect:
            yield (
                f"task {name} has GPUs on {shape.nodes} nodes, and the profile of `{profile.name}` declares no "
                "interconnect (net.interconnect): collectives may go over a slow network"
            )
        if experiment.tasks[name].after and shape.gpus:
            yield f"task {name} holds its machines while it waits for {', '.join(experiment.tasks[name].after)}"
    if _outlives(target):
        yield f"`{profile.name}` has no storage that outlives a job: after a preemption, the next windlass command restarts the task from the beginning"
    if experiment.limit.per_job is not None:
        yield "limit.per_job: Beaker then queues no jobs by itself; `windlass ps --reconcile` queues the next one"
