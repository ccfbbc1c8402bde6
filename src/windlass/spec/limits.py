"""Limits, retries, scheduling context and retention of a run; `windlass gc --yes` enforces the retention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, Range
from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration

__all__ = ["Best", "Context", "KeptCheckpoints", "Limit", "Retain", "Retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Priority, preemption and account of a run."""

    priority: Annotated[Literal["low", "normal", "high", "urgent"], Doc("Priority for the scheduler.")] = "normal"
    preemptible: Annotated[bool, Doc("Allow preemption; the run restarts automatically.")] = False
    account: Annotated[str, Doc("Account that is charged; GPU-hours are recorded per account.")] = ""
    group: Annotated[str, Doc("Name for finding related runs.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits that end a task or one of its jobs."""

    time: Annotated[
        float | None,
        DurationText(),
        Range(min=1),
        Doc("Total running time of each task, across all its attempts."),
    ] = None
    per_job: Annotated[
        float | None, DurationText(), Range(min=1), Doc("Walltime of one job; a longer run is a chain of jobs.")
    ] = None
    jobs: Annotated[int | None, Range(min=1), Doc("Maximum number of jobs in the chain.")] = None
    gpu_hours: Annotated[float | None, Range(above=0), Doc("Maximum GPU-hours of the whole run.")] = None

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if self.time is not None and self.per_job is not None and self.per_job > self.time:
            message = f"limit.per_job ({format_duration(self.per_job)}) is longer than limit.time ({format_duration(self.time)})"
            yield "per_job", message, "conflicting-options", "raise `time` or lower `per_job`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Number of restarts of a task, by reason."""

    interrupted: Annotated[
        int, Range(min=0), Doc("Restarts after a preemption, the end of the walltime, a killed process or a lost node.")
    ] = 50
    failed: Annotated[int, Range(min=0), Doc("Restarts after the user's code failed.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Best checkpoints by a reported metric."""

    metric: Annotated[str, Doc("Name of a metric that the code reports, such as `loss`.")]
    mode: Annotated[Literal["min", "max"], Doc("Best values: the smallest or the largest.")] = "min"
    keep: Annotated[int, Range(min=1), Doc("Number of checkpoints to keep.")] = 1

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not self.metric:
            yield "metric", "`metric` is empty", "invalid-value", "write the name of a metric, such as `loss`"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoints:
    """Checkpoints of each task to keep; all others are deleted."""

    last: Annotated[int | None, Range(min=1), Doc("Number of newest checkpoints to keep.")] = None
    best: Annotated[Best | None, Doc("Checkpoints with the best values of a metric.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """Rules of `windlass gc --yes` for a finished run; without a rule everything is kept."""

    ttl: Annotated[
        float | None, DurationText(), Range(min=1), Doc("Time after the end of a run when all its files are deleted.")
    ] = None
    checkpoints: Annotated[KeptCheckpoints, Doc("Checkpoints to keep.")] = KeptCheckpoints()
