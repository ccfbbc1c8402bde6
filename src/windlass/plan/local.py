"""Placement on a local cluster: N virtual nodes that share one machine."""

from __future__ import annotations

from windlass.core.dataclass import dataclass
from windlass.core.units import format_size
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import MachineResources, Site
from windlass.spec import Task

__all__ = ["MAX_REPLICAS", "Request", "check_fit", "gpus_per_node"]

MAX_REPLICAS = 512
"""Replicas of a task on one machine. The soak tests start and stop so many; more were never tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a task asks for: nodes, and per node the rest; `is_total`: the user wrote `total_gpus`."""

    nodes: int
    gpus: int
    cpus: float
    memory_bytes: int
    is_total: bool = False


def gpus_per_node(task: Task, path: str, diagnostics: Diagnostics) -> int:
    """GPUs of one node; `total_gpus` must divide by the nodes."""
    if task.total_gpus is None:
        return task.num_gpus
    num_nodes = task.num_nodes
    if task.total_gpus % num_nodes:
        fitting = [str(nodes) for nodes in range(1, task.total_gpus + 1) if task.total_gpus % nodes == 0]
        message = f"{path}.total_gpus={task.total_gpus} cannot be shared evenly by {path}.nodes={num_nodes}"
        diagnostics.add(
            f"{path}.total_gpus", message, "gpus-uneven", f"use a number of nodes from: {', '.join(fitting)}"
        )
        return 0
    return task.total_gpus // num_nodes


def check_fit(request: Request, task: str, site: Site, diagnostics: Diagnostics) -> None:
    """Refuse a gang that the whole machine could never hold; says what is too much, and a shape that fits."""
    machine = site.machine
    if machine is None:
        return
    wanted = (
        ("GPU", "gpus", request.gpus, machine.num_gpus, str),
        ("CPU", "cpus", request.cpus, machine.num_cpus, lambda value: f"{value:g}"),
        ("memory", "memory", request.memory_bytes, machine.memory_bytes, _size),
    )
    if request.nodes > MAX_REPLICAS:
        message = f"task `{task}` asks for {request.nodes} nodes, and `{site.name}` runs at most {MAX_REPLICAS}"
        hint = f"ask for fewer: tasks.{task}.nodes={MAX_REPLICAS}"
        diagnostics.add(f"tasks.{task}.nodes", message, "does-not-fit", hint)
        return
    excess = []
    for noun, key, each, there, text in wanted:
        if request.nodes * each > there:
            unit = " of memory" if noun == "memory" else f" {noun}s"
            arithmetic = f"{request.nodes} nodes x {text(each)} = {text(request.nodes * each)}{unit}"
            arithmetic = arithmetic if request.nodes > 1 else f"{text(each)}{unit[:-1] if each == 1 else unit}"
            excess.append(((noun, key), f"{arithmetic}, and `{site.name}` has {text(there)}"))
    if excess:
        message = f"task `{task}` does not fit: " + "; ".join(text for _, text in excess)
        hint = f"a shape that fits: --on {site.name} {_proposal(request, task, machine)}"
        diagnostics.add(f"tasks.{task}.{excess[0][0][1]}", message, "does-not-fit", hint)


def _size(num_bytes: float) -> str:
    return format_size(int(num_bytes)) if num_bytes % 2**20 == 0 else f"{num_bytes / 2**30:.1f}GiB"


def _proposal(request: Request, task: str, machine: MachineResources) -> str:
    nodes, gpus = request.nodes, min(request.gpus, machine.num_gpus)
    while nodes > 1 and not _holds(machine, nodes, gpus, request):
        nodes -= 1
    parts = [f"nodes={nodes}"] if nodes != request.nodes else []
    if request.is_total and nodes * gpus != request.nodes * request.gpus:
        parts = [f"total_gpus={nodes * gpus}" if gpus else "~total_gpus", *parts]
    elif gpus != request.gpus:
        parts.append(f"gpus={gpus}")
    if request.cpus > machine.num_cpus:
        parts.append(f"cpus={machine.num_cpus:g}")
    if request.memory_bytes > machine.memory_bytes:
        parts.append(f"memory={machine.memory_bytes // 2**20}MiB")
    return " ".join(f"~tasks.{task}.{part[1:]}" if part.startswith("~") else f"tasks.{task}.{part}" for part in parts)


def _holds(machine: MachineResources, nodes: int, gpus: int, request: Request) -> bool:
    return (
        nodes * gpus <= machine.num_gpus
        and nodes * request.cpus <= machine.num_cpus
        and nodes * request.memory_bytes <= machine.memory_bytes
    )
