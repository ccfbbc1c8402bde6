"""Chains of jobs at a Slurm site: their number of jobs and walltime, according to `limit`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.slurm.queue_target import QueueTarget
from windlass.spec import Experiment, Task
from windlass.supervise.job import TaskShape

__all__ = ["LinkPlan", "gpu_budget", "links_of"]

_NUM_AHEAD = 2
"""Number of extra links that are queued if only the client can queue links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """Length and walltime of one task's chain.

    Attributes:
        time_s: walltime of a link; 0 for the partition's default.
        num_needed: links that the running time needs; 1 if it is not limited.
        num_most: maximum number of links, after which the task ends.
        num_queued: links that are queued at launch.
    """

    time_s: float
    num_needed: int = 1
    num_most: int = 1
    num_queued: int = 1
    notes: tuple[str, ...] = ()

    @property
    def is_chained(self) -> bool:
        """Return whether another link can follow the first one."""
        return self.num_most > 1


def links_of(
    task: Task, experiment: Experiment, time_s: float | None, target: QueueTarget, diagnostics: Diagnostics
) -> LinkPlan:
    """Return a task's walltime and number of links; refuse limits that cannot be met.

    Args:
        time_s: total running time of all attempts of the task; None for no limit.
    """
    limit, longest = experiment.limit, target.there.time_max
    if limit.per_job is not None:
        walltime = float(limit.per_job)
        if longest is not None and walltime > longest:
            _refuse_time("limit.per_job", walltime, target, diagnostics, f"limit.per_job={format_duration(longest)}")
            walltime = longest
    elif time_s is not None:
        if longest is not None and time_s > longest:
            hint = f"a chain of jobs: limit.per_job={format_duration(longest)}"
            _refuse_time("limit.time" if limit.time == time_s else "limit.gpu_hours", time_s, target, diagnostics, hint)
        walltime = min(time_s + _start_and_stop_s(task), longest or float("inf"))
    else:
        walltime = float(longest or 0)
    needed = ceil(time_s / limit.per_job) if time_s is not None and limit.per_job is not None else 1
    ahead = needed if time_s is not None else limit.jobs or 1
    return _chained(needed, ahead, walltime, experiment, target, diagnostics)


def _start_and_stop_s(task: Task) -> float:
    """Return the extra seconds that a link needs so that the limit, not the walltime, ends it."""
    return float(task.ready_timeout) + float(task.grace)


def _refuse_time(setting: str, wanted: float, target: QueueTarget, diagnostics: Diagnostics, hint: str) -> None:
    longest = target.there.time_max
    assert longest is not None  # the caller has compared with it
    other = next(target.others(lambda partition: (partition.time_max or 0) >= wanted), "")
    message = (
        f"{setting} is {format_duration(wanted)}, and a job in `{target}` may run {format_duration(longest)} at most"
    )
    diagnostics.add(
        setting, message, "over-walltime", hint + (f", or another partition: --on {other}" if other else "")
    )


def _chained(
    needed: int, ahead: int, walltime: float, experiment: Experiment, target: QueueTarget, diagnostics: Diagnostics
) -> LinkPlan:
    """Return the chain; if only the client can queue links, the launch queues `ahead` of them and a reserve."""
    limit, retry, scheduler = experiment.limit, experiment.retry, target.profile.scheduler
    tries = 1 + retry.interrupted + retry.failed
    most = min(tries, limit.jobs or tries)
    notes = []
    if scheduler.chain == "none":
        if needed > 1:
            message = f"limit.time needs {needed} jobs of {format_duration(walltime)}, and `{target.profile.name}` allows no chains"
            hint = f"limit.time={format_duration(walltime)}, or `chain: successor` in the site's profile"
            diagnostics.add("limit.time", message, "over-walltime", hint)
        return LinkPlan(time_s=walltime)
    if most < needed:
        what = "limit.jobs" if most == limit.jobs else "retry"
        notes.append(
            f"{what} allows {most} jobs, but limit.time needs {needed} of {format_duration(walltime)}: "
            f"the task ends after {format_duration(most * walltime)}"
        )
    queued = min(2, most) if limit.per_job is not None else 1  # a running link queues the next one
    if scheduler.chain == "requeue":
        queued = 1
    elif not scheduler.submits_in_jobs:
        queued = min(most, ahead + _NUM_AHEAD)
        notes.append(
            f"compute nodes of `{target.profile.name}` cannot submit jobs: {queued} are submitted at the launch"
        )
    return LinkPlan(time_s=walltime, num_needed=needed, num_most=most, num_queued=queued, notes=tuple(notes))


def gpu_budget(
    experiment: Experiment, shapes: Mapping[str, TaskShape], diagnostics: Diagnostics
) -> tuple[Mapping[str, float], list[str]]:
    """Return the running time that `limit.gpu_hours` allows each task, and notes.

    A single task with GPUs gets the whole budget. Several tasks cannot share it, because usage is not counted across
    running tasks; they are refused unless `limit.time` keeps their total below the budget.
    """
    hours = experiment.limit.gpu_hours
    sizes = {name: shape.nodes * shape.gpus for name, shape in shapes.items() if shape.gpus}
    if hours is None or not sizes:
        return {}, ([] if hours is None else [f"limit.gpu_hours={hours:g}: no task takes a GPU"])
    together = sum(sizes.values())
    if len(sizes) == 1:
        (name,) = sizes
        time_s = max(1.0, hours * 3600 // together)
        text = f"limit.gpu_hours={hours:g}: {_gpus(together)} of task {name} may run {format_duration(time_s)}"
        return {name: time_s}, [text + ", all its attempts together"]
    listed = " and ".join(f"{name} {count}" for name, count in sizes.items())
    limit_s, allowed_s = experiment.limit.time, max(1.0, hours * 3600 // together)
    if limit_s is not None and together * limit_s <= hours * 3600:
        used = together * limit_s / 3600
        return {}, [f"limit.gpu_hours={hours:g}: limit.time keeps the tasks ({listed} GPUs) at {used:g} together"]
    message = f"limit.gpu_hours={hours:g}: {len(sizes)} tasks take GPUs ({listed}), and nothing counts across tasks while they run"
    hint = f"limit the running time of each: limit.time={format_duration(allowed_s)}, or ~limit.gpu_hours"
    diagnostics.add("limit.gpu_hours", message, "gpu-hours-shared", hint)
    return {}, []


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"
