"""An experiment at one place: the shape of every task there, how it is queued, and whether the place can do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass
from windlass.plan.capabilities import apply_rules
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.local import Request, check_fit, gpus_per_node
from windlass.plan.pins import built_name
from windlass.plan.site import Site
from windlass.plan.tokens.scope import scope_of
from windlass.spec import Experiment, Task
from windlass.supervise.job import BeakerRequest, ChainConfig, QueueRequest

if TYPE_CHECKING:
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["PlacedTask", "Placement", "bundles_of", "place_tasks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTask:
    """One task in the shape that it has at the place.

    Attributes:
        time_s: running time, all attempts together; None for no limit.
        bundles: the arithmetic of its bundles.
        node_cpus: CPUs that it may count on a node; 0: not known.
    """

    request: Request
    time_s: float | None = None
    queue: QueueRequest = QueueRequest()
    chain: ChainConfig = ChainConfig()
    bundles: tuple[str, ...] = ()
    node_cpus: int = 0
    beaker: BeakerRequest = BeakerRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An experiment at one place.

    Attributes:
        experiment: reshaped where that was asked for.
        target: partition and queue at a Slurm site, clusters at a Beaker site; None elsewhere.
    """

    experiment: Experiment
    tasks: Mapping[str, PlacedTask]
    target: QueueTarget | None = None
    notes: tuple[str, ...] = field(default=())


def place_tasks(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, best_effort: bool, reshape: bool
) -> Placement:
    """Decide shape and queue of every task at a place; what the place cannot do goes to `diagnostics`. Pure."""
    if site.backend == "beaker":
        from windlass.plan.beaker.placement import place_on_beaker  # lazy: a local plan needs no site profiles

        return place_on_beaker(experiment, site, diagnostics, best_effort=best_effort, reshape=reshape)
    if site.backend != "slurm":
        notes = apply_rules(experiment, site, diagnostics, is_best_effort=best_effort)
        if site.backend == "docker":
            from windlass.plan.containers import check_containers  # lazy: a local plan has none

            check_containers(experiment, site, diagnostics)
        if reshape:
            notes.append("--reshape: the nodes of a task share this machine, so there is nothing to reshape")
        tasks = {
            name: _local_task(name, task, experiment, site, diagnostics) for name, task in experiment.tasks.items()
        }
        return Placement(experiment=experiment, tasks=tasks, notes=tuple(notes))
    from windlass.plan.slurm.placement import place_on_slurm  # lazy: a local plan needs no site profiles

    return place_on_slurm(experiment, site, diagnostics, best_effort=best_effort, reshape=reshape)


def _local_task(name: str, task: Task, experiment: Experiment, site: Site, diagnostics: Diagnostics) -> PlacedTask:
    request = Request(
        nodes=task.num_nodes,
        gpus=gpus_per_node(task, f"tasks.{name}", diagnostics),
        cpus=float(task.cpus or 0),
        memory_bytes=task.memory or 0,
        is_total=task.total_gpus is not None,
    )
    check_fit(request, name, site, diagnostics)
    time_s = None if built_name(name) else experiment.limit.time  # a limit is for what the data is built for
    return PlacedTask(
        request=request,
        time_s=None if time_s is None else float(time_s),
        bundles=bundles_of(name, experiment, request, int(request.cpus), diagnostics),
        node_cpus=int(request.cpus),
    )


def bundles_of(
    name: str, experiment: Experiment, request: Request, cpus: int, diagnostics: Diagnostics
) -> tuple[str, ...]:
    """The arithmetic of a task's bundles, refused where they do not fit; `cpus` of a node, 0: unknown."""
    task = experiment.tasks[name]
    if not task.bundles or (request.is_total and not request.gpus):  # without a shape, refused already
        return ()
    from windlass.plan.bundles import check_bundles  # lazy: few tasks have any

    return check_bundles(name, task, request, cpus, scope_of(name, experiment, request), diagnostics)
