"""Check that the nodes of a partition have the resources that a task requests."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from windlass.core.units import format_size
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.shape import best_shape, reshape_overrides
from windlass.plan.slurm.queue_target import QueueTarget
from windlass.sites.profile import Partition
from windlass.spec import Task
from windlass.supervise.job import TaskShape

__all__ = ["check_nodes"]


def check_nodes(name: str, task: Task, shape: TaskShape, target: QueueTarget, diagnostics: Diagnostics) -> None:
    """Refuse requests that exceed the partition's nodes; hints name a shape or partition that fits."""
    path = f"tasks.{name}"
    _check_gpus(name, task, shape, target, diagnostics)
    there = target.there
    most = min((count for count in (there.max_nodes, there.num_nodes) if count), default=0)
    if most and shape.nodes > most:
        why = "a job may have" if there.max_nodes == most else "it has"
        message = f"task `{name}` needs {_nodes(shape.nodes)} of `{target}`, and {why} {most}"
        hint = _elsewhere(target, lambda other: _holds(other, shape), f"{path}.nodes={most}")
        diagnostics.add(f"{path}.nodes" if task.nodes else f"{path}.total_gpus", message, "does-not-fit", hint)
    if there.cpus and shape.cpus > there.cpus:
        message = f"task `{name}` needs {shape.cpus:g} CPUs of a node, and one of `{target}` has {there.cpus}"
        hint = _elsewhere(target, lambda other: other.cpus >= shape.cpus, f"{path}.cpus={there.cpus}")
        diagnostics.add(f"{path}.cpus", message, "does-not-fit", hint)
    if there.memory and shape.memory_bytes > there.memory:
        has = format_size(there.memory)
        message = f"task `{name}` needs {format_size(shape.memory_bytes)} of a node, and one of `{target}` has {has}"
        hint = _elsewhere(target, lambda other: other.memory >= shape.memory_bytes, f"{path}.memory={has}")
        diagnostics.add(f"{path}.memory", message, "does-not-fit", hint)
    missing = [feature for feature in task.features if there.features and feature not in there.features]
    if missing:
        message = f"no node of `{target}` has the feature `{missing[0]}`"
        wanted = f"its features are: {', '.join(there.features)}"
        hint = _elsewhere(target, lambda other: missing[0] in other.features, wanted)
        diagnostics.add(f"{path}.features", message, "does-not-fit", hint)
    _check_hosts(path, task, shape, target, diagnostics)


def _holds(partition: Partition, shape: TaskShape) -> bool:
    num_nodes = min((count for count in (partition.max_nodes, partition.num_nodes) if count), default=shape.nodes)
    return num_nodes >= shape.nodes and (partition.gpus or 0) >= shape.gpus


def _elsewhere(target: QueueTarget, holds: Callable[[Partition], bool], override: str) -> str:
    """Return a hint with an override that fits, or with another partition."""
    other = next(target.others(holds), "")
    return f"{override}, or another partition: --on {other}" if other else override


def _check_gpus(name: str, task: Task, shape: TaskShape, target: QueueTarget, diagnostics: Diagnostics) -> None:
    path, per_node = f"tasks.{name}", target.there.gpus
    key = f"{path}.total_gpus" if task.total_gpus is not None else f"{path}.gpus"
    if shape.gpus and per_node == 0:
        other = next(target.others(lambda partition: bool(partition.gpus)), "")
        hint = f"a partition with GPUs: --on {other}" if other else f"run without GPUs: ~{key}"
        diagnostics.add(key, f"task `{name}` needs GPUs, but the nodes of `{target}` have none", "does-not-fit", hint)
    elif per_node and shape.gpus > per_node:
        total = shape.nodes * shape.gpus
        arithmetic = f"{shape.nodes} x {shape.gpus} = {total} GPUs" if shape.nodes > 1 else f"{total} GPUs of a node"
        message = f"task `{name}` needs {arithmetic}, and a node of `{target}` has {per_node}"
        overrides = reshape_overrides(name, task, per_node)
        best = best_shape(total, per_node)
        if overrides and best is not None:
            hint = f"{best[0]} x {best[1]}: {' '.join(overrides)}, or let --reshape write that"
        else:
            nodes = ceil(total / per_node)
            hint = f"a shape that fits: {path}.nodes={nodes} {path}.gpus={per_node}"
        other = next(target.others(lambda partition: (partition.gpus or 0) >= shape.gpus), "")
        hint += f", or another partition: --on {other}" if other else ""
        diagnostics.add(key, message, "needs-reshape", hint)
    _check_type(path, task, target, diagnostics)


def _check_type(path: str, task: Task, target: QueueTarget, diagnostics: Diagnostics) -> None:
    wanted = task.gpus.type if task.gpus is not None else ""
    names = _types(target.there)
    if wanted and names and wanted.casefold() not in names:
        other = next(target.others(lambda partition: wanted.casefold() in _types(partition)), "")
        count = f"{path}.gpus={task.num_gpus}"
        hint = f"a partition that has them: --on {other}" if other else f"accept any type: {count}"
        message = f"{path}.gpus asks for `{wanted}`, and `{target}` has {target.there.gpu_type or target.there.gres}"
        diagnostics.add(f"{path}.gpus", message, "does-not-fit", hint)


def _types(partition: Partition) -> set[str]:
    return {name.casefold() for name in (partition.gpu_type, partition.gres) if name}


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"


def _check_hosts(path: str, task: Task, shape: TaskShape, target: QueueTarget, diagnostics: Diagnostics) -> None:
    if not task.hosts:
        return
    lists = [host for host in task.hosts if "[" in host or "," in host]
    if lists:
        message = f"{path}.hosts holds `{lists[0]}`, which is not a single host name"
        hint = f"write each host by itself: {path}.hosts=[{lists[0] if '[' not in lists[0] else 'n1,n2'}]"
        diagnostics.add(f"{path}.hosts", message, "does-not-fit", hint)
    elif len(task.hosts) != shape.nodes:
        message = f"{path}.hosts is `{', '.join(task.hosts)}`, and the task takes {_nodes(shape.nodes)}"
        hint = f"list as many hosts as nodes: {path}.nodes={len(task.hosts)}, or ~{path}.hosts"
        diagnostics.add(f"{path}.hosts", message, "does-not-fit", hint)
    excluded = {entry.host: entry for entry in target.profile.scheduler.exclude}
    for host in task.hosts:
        if host in excluded:
            reason = excluded[host].reason or "no reason given"
            message = f"{path}.hosts names `{host}`, which `{target.profile.name}` excludes: {reason}"
            hint = "use another host, or remove this one from scheduler.exclude in the site's profile"
            diagnostics.add(f"{path}.hosts", message, "does-not-fit", hint)
