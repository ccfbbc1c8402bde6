"""Placement at a Slurm site: partition, shapes, walltimes and chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from windlass.core.units import format_duration
from windlass.plan.bundles import bundles_of
from windlass.plan.capabilities import apply_rules
from windlass.plan.containers import check_site_containers
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.pins import built_name
from windlass.plan.placement_result import PlacedTask, Placement
from windlass.plan.shape import reshaped, shape_at
from windlass.plan.site import Site
from windlass.plan.slurm.nodes import check_nodes
from windlass.plan.slurm.queue_target import QueueTarget, queue_target_of
from windlass.plan.slurm.queueing import chain_of, queue_of
from windlass.plan.slurm.walltime import LinkPlan, gpu_budget, links_of
from windlass.sites.profile import Partition
from windlass.spec import Experiment, Limit
from windlass.supervise.job import TaskShape

__all__ = ["place_on_slurm"]


def place_on_slurm(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, best_effort: bool, reshape: bool
) -> Placement:
    """See `windlass.plan.placement.place_tasks`."""
    target = queue_target_of(experiment, site, diagnostics)
    notes: list[str] = []
    if reshape:
        experiment, notes = reshaped(experiment, target.there.gpus)
    notes += apply_rules(experiment, site, diagnostics, is_best_effort=best_effort, target=target)
    check_site_containers(experiment, target.profile, diagnostics)
    targets = {name: _target_of(name, experiment, site, target, diagnostics) for name in experiment.tasks}
    shapes = {name: shape_at(name, task, targets[name], diagnostics) for name, task in experiment.tasks.items()}
    budget, more = gpu_budget(experiment, shapes, diagnostics)
    tasks = {}
    for name, shape in shapes.items():
        check_nodes(name, experiment.tasks[name], shape, targets[name], diagnostics)
        if built_name(name):
            tasks[name], _ = _place_task(
                name, replace(experiment, limit=Limit()), shape, None, targets[name], diagnostics
            )
            continue
        times = [time for time in (experiment.limit.time, budget.get(name)) if time is not None]
        tasks[name], links = _place_task(name, experiment, shape, min(times, default=None), targets[name], diagnostics)
        more += links.notes
    more += [*_notes(experiment, shapes, target, tasks)]
    return Placement(experiment=experiment, tasks=tasks, target=target, notes=tuple(dict.fromkeys((*notes, *more))))


def _target_of(
    name: str, experiment: Experiment, site: Site, target: QueueTarget, diagnostics: Diagnostics
) -> QueueTarget:
    """Return the target of one task; one that evaluates checkpoints may have another partition and priority."""
    if built_name(name):
        return _cpu_target(target)
    evaluate = experiment.tasks[name].evaluate
    if evaluate is None or not (evaluate.partition or evaluate.priority):
        return target
    context = replace(experiment.context, priority=evaluate.priority or experiment.context.priority)
    place = replace(site, partition=evaluate.partition or site.partition)
    return queue_target_of(replace(experiment, context=context), place, diagnostics)


def _cpu_target(target: QueueTarget) -> QueueTarget:
    """Return the target for tasks without GPUs: the site's partition and QOS for them, and no nice value."""
    scheduler, partitions = target.profile.scheduler, target.profile.partitions
    name = scheduler.cpu_partition
    if not name:
        return target
    return replace(target, partition=name, there=partitions.get(name, Partition()), qos=scheduler.qos, nice=0)


def _place_task(
    name: str,
    experiment: Experiment,
    shape: TaskShape,
    time_s: float | None,
    target: QueueTarget,
    diagnostics: Diagnostics,
) -> tuple[PlacedTask, LinkPlan]:
    task = experiment.tasks[name]
    links = links_of(task, experiment, time_s, target, diagnostics)
    placed = PlacedTask(
        shape=shape,
        time_s=None if time_s is None else float(time_s),
        queue=queue_of(task, shape, links, target),
        chain=chain_of(links, target),
        bundles=bundles_of(name, experiment, shape, diagnostics),
    )
    return placed, links


def _notes(
    experiment: Experiment, shapes: dict[str, TaskShape], target: QueueTarget, tasks: dict[str, PlacedTask]
) -> Iterator[str]:
    profile, there = target.profile, target.there
    if target.partition not in profile.partitions:
        place = f"partition `{target.partition}`" if target.partition else "the default partition"
        yield f"what the nodes of {place} of `{profile.name}` have is unknown, so nothing was checked"
    if there.is_preempted and not experiment.context.preemptible:
        yield f"nodes of `{target}` can be preempted: an interrupted task resumes in the next job of its chain"
    for name, shape in shapes.items():
        if shape.nodes > 1 and shape.gpus and not profile.net.interconnect:
            yield (
                f"task {name} has GPUs on {shape.nodes} nodes, and the profile of `{profile.name}` declares no "
                "interconnect (net.interconnect): collectives may go over a slow network"
            )
        if shape.gpus and not tasks[name].queue.cpus_per_node and not profile.scheduler.exclusive:
            yield (
                f"task {name} asks for GPUs and not for CPUs (tasks.{name}.cpus): it gets the default number of CPUs at "
                f"`{profile.name}`, perhaps one CPU"
            )
    unlimited = [
        name
        for name, task in tasks.items()
        if not built_name(name) and task.time_s is None and task.chain.mode != "none"
    ]
    if unlimited and experiment.limit.jobs is None:
        most = tasks[unlimited[0]].chain.num_links
        each = tasks[unlimited[0]].queue.time_s
        walltime = f" of {format_duration(each)}" if each else ""
        yield f"limit.time is not set: up to {most} jobs{walltime} may follow one another while the task is interrupted"
