"""Token scope of a task: its shape, parameters, and the paths of upstream tasks."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.config.annotations import JsonValue
from windlass.plan.pins import built_name
from windlass.plan.tokens.resolve import LATE_TOKENS, Scope
from windlass.plan.tokens.tokens import IN_JOB_TOKENS, flat_params
from windlass.spec import Experiment, Task
from windlass.supervise.job import TaskShape

__all__ = ["scope_of"]


def scope_of(name: str, experiment: Experiment, shape: TaskShape) -> Scope:
    """Return the token scope for a task with this shape."""
    task = experiment.tasks[name]
    if built_name(name):
        from windlass.plan.builds import build_scope  # lazy: most experiments build no data

        return build_scope(built_name(name), experiment)
    values: dict[str, JsonValue] = {
        **flat_params(experiment.params),
        "name": experiment.name,
        "nodes": shape.nodes,
        "gpus_per_node": shape.gpus,
        "num_gpus": shape.gpus * shape.nodes,
        "procs_per_node": task.procs_per_node or (1 if task.cluster == "none" else shape.gpus or 1),
    }
    upstream = _upstream(name, experiment.tasks)
    later = {*LATE_TOKENS, *IN_JOB_TOKENS, *(f"data.{key}" for key in experiment.data)}
    later |= {f"tasks.{other}.{kind}" for other in upstream for kind in ("out", "checkpoints")}
    others = experiment.tasks.keys() - upstream
    blocked = {f"tasks.{other}.{kind}": other for other in sorted(others) for kind in ("out", "checkpoints")}
    return Scope(task=name, values=values, later=frozenset(later), blocked=blocked)


def _upstream(name: str, tasks: Mapping[str, Task]) -> set[str]:
    found: set[str] = set()
    todo = list(tasks[name].after)
    while todo:
        other = todo.pop()
        if other not in found and other in tasks:
            found.add(other)
            todo += tasks[other].after
    return found - {name}
