"""Shape of a task at a site: the number of nodes, and the resources per node."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from windlass.core.units import format_size
from windlass.plan.diagnostics import Diagnostics
from windlass.spec import Experiment, Gpus, Task
from windlass.supervise.job import TaskShape

if TYPE_CHECKING:
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["best_shape", "gpus_per_node", "reshape_overrides", "reshaped", "shape_at", "shape_of"]


def gpus_per_node(task: Task, path: str, diagnostics: Diagnostics) -> int:
    """Return the number of GPUs per node; refuse a `total_gpus` that cannot be divided evenly among the nodes."""
    if task.total_gpus is None:
        return task.num_gpus
    num_nodes = task.num_nodes
    if task.total_gpus % num_nodes:
        fitting = [str(nodes) for nodes in range(1, task.total_gpus + 1) if task.total_gpus % nodes == 0]
        message = f"{path}.total_gpus={task.total_gpus} cannot be shared evenly by {path}.nodes={num_nodes}"
        diagnostics.add(
            f"{path}.total_gpus", message, "does-not-fit", f"use a number of nodes from: {', '.join(fitting)}"
        )
        return 0
    return task.total_gpus // num_nodes


def best_shape(num_gpus: int, per_node: int) -> tuple[int, int] | None:
    """Return the number of nodes and GPUs per node, if nodes have `per_node` GPUs; None if too many would be idle.

    All nodes get an equal number. The result has as few nodes as possible, each with more than half of its GPUs used.
    """
    if num_gpus <= per_node:
        return 1, num_gpus
    each = max((size for size in range(1, per_node + 1) if num_gpus % size == 0), default=0)
    return (num_gpus // each, each) if 2 * each > per_node else None


def shape_of(task: Task, *, nodes: int, gpus: int, node_cpus: int) -> TaskShape:
    """Return the shape with these nodes and GPUs per node; the task states the other resources per node."""
    return TaskShape(
        nodes=nodes,
        gpus=gpus,
        gpu_type=task.gpus.type if task.gpus is not None else "",
        cpus=float(task.cpus or 0),
        memory_bytes=task.memory or 0,
        shared_memory_bytes=task.shared_memory or 0,
        node_cpus=node_cpus,
    )


def shape_at(name: str, task: Task, target: QueueTarget, diagnostics: Diagnostics) -> TaskShape:
    """Return a task's shape in a partition; `total_gpus` without `nodes` gives whole nodes."""
    path, per_node = f"tasks.{name}", target.there.gpus
    nodes, gpus = task.num_nodes, 0
    if task.total_gpus is None or task.nodes is not None:
        gpus = gpus_per_node(task, path, diagnostics)
    elif per_node is None:
        message = f"{path}.total_gpus={task.total_gpus}: how many GPUs a node of `{target}` has is not known"
        hint = f"write both: {path}.nodes=N {path}.gpus=N ~{path}.total_gpus"
        diagnostics.add(f"{path}.total_gpus", message, "does-not-fit", hint)
    elif per_node == 0:
        gpus = task.total_gpus
    else:
        best = best_shape(task.total_gpus, per_node)
        if best is None:
            _refuse_uneven(path, task.total_gpus, per_node, target, diagnostics)
        nodes, gpus = best or (nodes, 0)
    return shape_of(task, nodes=nodes, gpus=gpus, node_cpus=target.cpus_per_node(task))


def _refuse_uneven(path: str, total: int, per_node: int, target: QueueTarget, diagnostics: Diagnostics) -> None:
    message = f"{path}.total_gpus={total} cannot be shared evenly by nodes of {per_node} GPUs (`{target}`)"
    fewer, more = total - total % per_node, total + per_node - total % per_node
    hint = f"write {path}.total_gpus={fewer} or {path}.total_gpus={more}"
    diagnostics.add(f"{path}.total_gpus", message, "does-not-fit", hint)


def reshape_overrides(name: str, task: Task, per_node: int) -> tuple[str, ...]:
    """Return overrides that spread a task over nodes with `per_node` GPUs; may be empty.

    Other resources per node shrink in proportion to the GPUs, so that their totals do not change.
    """
    reshaped_task = _reshaped(task, per_node)
    if reshaped_task is task:
        return ()
    path = f"tasks.{name}"
    key = "gpus.count" if task.gpus is not None and task.gpus.type else "gpus"
    overrides = [f"{path}.nodes={reshaped_task.nodes}"]
    if task.gpus is not None:
        overrides.append(f"{path}.{key}={reshaped_task.num_gpus}")
    if task.cpus is not None:
        overrides.append(f"{path}.cpus={reshaped_task.cpus:g}")
    for setting in ("memory", "disk"):
        value = getattr(reshaped_task, setting)
        overrides += [f"{path}.{setting}={format_size(value)}"] if value is not None else []
    if task.procs_per_node is not None and reshaped_task.procs_per_node != task.procs_per_node:
        overrides.append(f"{path}.procs_per_node={reshaped_task.procs_per_node}")
    return tuple(overrides)


def reshaped(experiment: Experiment, per_node: int | None) -> tuple[Experiment, list[str]]:
    """Spread each task that requests more GPUs per node than a node has over more nodes.

    Returns:
        The experiment, and a note on each changed task.
    """
    if not per_node:
        return experiment, []
    tasks = {name: _reshaped(task, per_node) for name, task in experiment.tasks.items()}
    notes = []
    for name, task in experiment.tasks.items():
        overrides = reshape_overrides(name, task, per_node)
        notes += [f"task {name} was reshaped (--reshape): {' '.join(overrides)}"] if overrides else []
    return (replace(experiment, tasks=tasks) if notes else experiment), notes


def _reshaped(task: Task, per_node: int) -> Task:
    """Return the task reshaped for nodes with `per_node` GPUs; unchanged if it fits or no shape fits."""
    total = task.total_gpus or task.num_gpus * task.num_nodes
    is_uneven = task.total_gpus is not None and (task.nodes is None or task.total_gpus % task.nodes != 0)
    best = best_shape(total, per_node) if per_node and total and not is_uneven else None
    wanted = total // task.num_nodes
    if best is None or wanted <= per_node:
        return task
    nodes, gpus = best
    return replace(
        task,
        nodes=nodes,
        gpus=None if task.gpus is None else Gpus(count=gpus, type=task.gpus.type),
        cpus=None if task.cpus is None else float(ceil(task.cpus * gpus / wanted)),
        memory=_share(task.memory, gpus, wanted),
        disk=_share(task.disk, gpus, wanted),
        procs_per_node=_procs(task.procs_per_node, gpus, wanted),
    )


def _share(size: int | None, gpus: int, of: int) -> int | None:
    """Return a size, reduced in proportion to the GPUs, in whole MiB."""
    return None if size is None else ceil(size * gpus / of / 2**20) * 2**20


def _procs(procs: int | None, gpus: int, of: int) -> int | None:
    return procs if procs is None or procs * gpus % of else procs * gpus // of
