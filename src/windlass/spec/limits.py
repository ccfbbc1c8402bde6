"""Limits, retries, and the scheduling context of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, Range
from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration

__all__ = ["Context", "Limit", "Retry"]


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
