"""Placement on one machine, which all nodes of a task share, directly or in containers."""

from __future__ import annotations

from windlass.core.units import format_size
from windlass.plan.bundles import bundles_of
from windlass.plan.capabilities import apply_rules
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.pins import built_name
from windlass.plan.placement_result import PlacedTask, Placement
from windlass.plan.shape import gpus_per_node, shape_of
from windlass.plan.site import Site, SiteResources
from windlass.spec import Experiment, Task
from windlass.supervise.job import TaskShape

__all__ = ["MAX_REPLICAS", "place_locally"]

MAX_REPLICAS = 512
"""Maximum number of replicas of a task on one machine; covered by soak tests."""


def place_locally(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, best_effort: bool, reshape: bool
) -> Placement:
    """See `windlass.plan.placement.place_tasks`."""
    notes = apply_rules(experiment, site, diagnostics, is_best_effort=best_effort)
    if site.backend == "docker":
        from windlass.plan.containers import check_containers  # lazy: a local plan has none

        check_containers(experiment, site, diagnostics)
    if reshape:
        notes.append("--reshape: the nodes of a task share this machine, so there is nothing to reshape")
    tasks = {name: _place_task(name, task, experiment, site, diagnostics) for name, task in experiment.tasks.items()}
    return Placement(experiment=experiment, tasks=tasks, notes=tuple(notes))


def _place_task(name: str, task: Task, experiment: Experiment, site: Site, diagnostics: Diagnostics) -> PlacedTask:
    gpus = gpus_per_node(task, f"tasks.{name}", diagnostics)
    shape = shape_of(task, nodes=task.num_nodes, gpus=gpus, node_cpus=int(task.cpus or 0))
    _check_fit(shape, name, site, diagnostics, is_total=task.total_gpus is not None)
    time_s = (
        None if built_name(name) else experiment.limit.time
    )  # a limit applies to the user's tasks, not to data builds
    return PlacedTask(
        shape=shape,
        time_s=None if time_s is None else float(time_s),
        bundles=bundles_of(name, experiment, shape, diagnostics),
    )


def _check_fit(shape: TaskShape, task: str, site: Site, diagnostics: Diagnostics, *, is_total: bool) -> None:
    """Refuse a gang that does not fit on the machine, suggesting a shape that fits."""
    machine = site.machine
    if machine is None:
        return
    wanted = (
        ("GPU", "gpus", shape.gpus, machine.num_gpus, str),
        ("CPU", "cpus", shape.cpus, machine.num_cpus, lambda value: f"{value:g}"),
        ("memory", "memory", shape.memory_bytes, machine.memory_bytes, _size),
    )
    if shape.nodes > MAX_REPLICAS:
        message = f"task `{task}` asks for {shape.nodes} nodes, and `{site.name}` runs at most {MAX_REPLICAS}"
        hint = f"ask for fewer: tasks.{task}.nodes={MAX_REPLICAS}"
        diagnostics.add(f"tasks.{task}.nodes", message, "does-not-fit", hint)
        return
    excess = []
    for noun, key, each, there, text in wanted:
        if shape.nodes * each > there:
            unit = " of memory" if noun == "memory" else f" {noun}s"
            arithmetic = f"{shape.nodes} nodes x {text(each)} = {text(shape.nodes * each)}{unit}"
            arithmetic = arithmetic if shape.nodes > 1 else f"{text(each)}{unit[:-1] if each == 1 else unit}"
            excess.append(((noun, key), f"{arithmetic}, and `{site.name}` has {text(there)}"))
    if excess:
        message = f"task `{task}` does not fit: " + "; ".join(text for _, text in excess)
        hint = f"a shape that fits: --on {site.name} {_proposal(shape, task, machine, is_total=is_total)}"
        diagnostics.add(f"tasks.{task}.{excess[0][0][1]}", message, "does-not-fit", hint)


def _size(num_bytes: float) -> str:
    return format_size(int(num_bytes)) if num_bytes % 2**20 == 0 else f"{num_bytes / 2**30:.1f}GiB"


def _proposal(shape: TaskShape, task: str, machine: SiteResources, *, is_total: bool) -> str:
    nodes, gpus = shape.nodes, min(shape.gpus, machine.num_gpus)
    while nodes > 1 and not _holds(machine, nodes, gpus, shape):
        nodes -= 1
    parts = [f"nodes={nodes}"] if nodes != shape.nodes else []
    if is_total and nodes * gpus != shape.nodes * shape.gpus:
        parts = [f"total_gpus={nodes * gpus}" if gpus else "~total_gpus", *parts]
    elif gpus != shape.gpus:
        parts.append(f"gpus={gpus}")
    if shape.cpus > machine.num_cpus:
        parts.append(f"cpus={machine.num_cpus:g}")
    if shape.memory_bytes > machine.memory_bytes:
        parts.append(f"memory={machine.memory_bytes // 2**20}MiB")
    return " ".join(f"~tasks.{task}.{part[1:]}" if part.startswith("~") else f"tasks.{task}.{part}" for part in parts)


def _holds(machine: SiteResources, nodes: int, gpus: int, shape: TaskShape) -> bool:
    return (
        nodes * gpus <= machine.num_gpus
        and nodes * shape.cpus <= machine.num_cpus
        and nodes * shape.memory_bytes <= machine.memory_bytes
    )
