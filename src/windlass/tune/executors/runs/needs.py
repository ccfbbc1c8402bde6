"""What the trials of an experiment need, and how many of them a place holds at once."""

from __future__ import annotations

from windlass.plan import Plan
from windlass.tune.executors.runs.trial_template import TrialTemplate

__all__ = ["capacity_of", "needed"]

_NUM_AT_A_SITE = 64
"""Runs that a sweep without `concurrency` has at a site at once; the others would only lengthen its queue."""


def needed(plan: Plan) -> dict[str, float]:
    """CPUs and GPUs of a trial: of its largest task, all its nodes together."""
    most: dict[str, float] = {"CPU": 1.0}
    for task in plan.tasks:
        for name, amount in {"CPU": task.cpus or 1.0, "GPU": float(task.gpus)}.items():
            most[name] = max(most.get(name, 0.0), amount * task.nodes)
    return {name: amount for name, amount in most.items() if amount}


def capacity_of(blueprint: TrialTemplate) -> int:
    """Runs at once where the sweep does not say: what this machine holds, or a good number at a site."""
    machine = blueprint.plan.site.machine
    if machine is None:
        return _NUM_AT_A_SITE
    need = needed(blueprint.plan)
    cpus = machine.num_cpus // need["CPU"]
    gpus = machine.num_gpus // need["GPU"] if need.get("GPU") else cpus
    return max(1, int(min(cpus, gpus)))
