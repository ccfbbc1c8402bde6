"""Protocol of backends, the values that it uses, and optional capabilities as separate protocols.

A backend turns one submission of one task into a job at its site, and reports that job's state. It makes no decisions:
retries, chains and completion are handled by the supervisor in the job and by `launch.reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol, runtime_checkable

from windlass.core.dataclass import dataclass
from windlass.supervise.job import JobDocument

__all__ = [
    "Backend",
    "CanHold",
    "CanSubmitMany",
    "CanSweep",
    "CanUnqueue",
    "JobState",
    "Observation",
    "Rendered",
    "Submission",
]


class JobState(Enum):
    """State of a job as the backend sees it; the supervisor's own record takes precedence."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Complete content of a submission, which a dry run prints.

    Attributes:
        folder: the job's folder below the run's directory.
        files: content of the files to write into the folder, by name.
        argv: command line that submits or starts the job.
    """

    folder: Path
    files: Mapping[str, str]
    argv: tuple[str, ...]
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Job that was submitted to a backend.

    Attributes:
        backend_id: the backend's id of the job.
        locator: a stable URL of the job, such as `local://host/pid...`, or its web page if it has one.
        folder: the job's folder.
    """

    backend_id: str
    locator: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Current state of a job as its backend sees it.

    Attributes:
        cause: for a job that is gone, how it ended according to its site, in the terms of `record.causes`; empty if
            unknown.
        signs: for a job that is gone, why parts of it may still be running, in words; empty if there is no sign.
        waiting: the site's ids of its parts that wait in a queue.
        suspended: why it does not run although it has machines, in words; empty if it is not suspended.
    """

    state: JobState
    detail: str = ""
    cause: str = ""
    signs: str = ""
    waiting: tuple[str, ...] = ()
    suspended: str = ""


class Backend(Protocol):
    """System that runs jobs: this machine, a container engine, a scheduler."""

    name: str

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return the content of a submission. Pure: no I/O, and equal inputs give equal output.

        Args:
            archive: path of the zipapp with the supervisor, as the site sees it.
        """

    def submit(self, rendered: Rendered) -> Submission:
        """Submit the job.

        Blocking and idempotent: a second call with the same `rendered.token` finds the first call's job.

        Raises:
            PreconditionError: the site rejects the job permanently.
            UnreachableError: it is not known whether the job was accepted; call again.
        """

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Return the states of jobs by backend id, with one request for all.

        A job that cannot be seen is UNKNOWN, not GONE.
        """

    def cancel(self, job: Submission) -> None:
        """Kill the job and all its processes. Blocking; idempotent."""

    def explain(self, job: Submission) -> str:
        """Return a sentence that says why the job waits; empty if it does not."""


@runtime_checkable
class CanSweep(Protocol):
    """Backend whose lost jobs may leave processes behind on a machine that can be reached."""

    def sweep(self, job: Submission) -> int:
        """End processes left behind by a job that is gone; return how many. Idempotent."""


@runtime_checkable
class CanHold(Protocol):
    """Backend whose jobs can wait in the queue for other tasks, without holding machines."""

    def let_go(self, job: Submission) -> None:
        """Release a job that was submitted with `queue.hold`, so that it can start. Blocking; idempotent."""


@runtime_checkable
class CanUnqueue(Protocol):
    """Backend in which one part of a job may run while another part waits in a queue."""

    def unqueue(self, job: Submission) -> None:
        """Remove a job's waiting parts from the queue; running parts continue. Blocks until they are gone; idempotent.

        Raises:
            UnreachableError: the site does not respond, or did not do it in time; call again.
        """


@runtime_checkable
class CanSubmitMany(Protocol):
    """Backend that accepts many jobs of the same shape at once."""

    def submit_many(self, rendered: Sequence[Rendered]) -> Sequence[Submission]:
        """Submit several jobs in order, like `Backend.submit` but with fewer requests to the site.

        It is as idempotent as `Backend.submit`.
        """
