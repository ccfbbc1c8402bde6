"""Protocol of backends, its values, and optional capabilities as protocols of their own.

A backend turns one submission of one task into an object of its place and back into facts. It takes no decision:
retries, chains and ends belong to the supervisor in the job and to `launch.reconcile`.
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
    """A backend's view of a job; a hint beside the supervisor's own word."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Exactly what will be submitted; a dry run prints it.

    Attributes:
        folder: the job's folder below the run's directory.
        files: content by name, to be written into the folder.
        argv: what the backend executes to submit or to start.
    """

    folder: Path
    files: Mapping[str, str]
    argv: tuple[str, ...]
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as its backend knows it.

    Attributes:
        backend_id: the backend's own name of it.
        locator: a stable URL of it, `local://host/pid...`; the backend's web page where there is one.
        folder: its job folder.
    """

    backend_id: str
    locator: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of a job as its backend sees it now.

    Attributes:
        cause: for a job that is gone, how its place says it ended, in the words of `record.causes`; empty: not known.
        signs: for a job that is gone, why something of it may run all the same, in words; empty: nothing speaks for it.
        waiting: what of it waits in a queue, by its place's ids.
        suspended: why it does not run although it has its machines, in words; empty: it is not suspended.
    """

    state: JobState
    detail: str = ""
    cause: str = ""
    signs: str = ""
    waiting: tuple[str, ...] = ()
    suspended: str = ""


class Backend(Protocol):
    """Place where jobs run: this machine, an engine, a scheduler."""

    name: str

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return what to submit. Pure: no I/O, equal inputs give equal output.

        Args:
            archive: the zipapp with the supervisor, as seen from the place.
        """

    def submit(self, rendered: Rendered) -> Submission:
        """Make the job. Blocking; idempotent by `rendered.token`: a second call finds the first one's job.

        Raises:
            PreconditionError: the place refuses the job for good.
            UnreachableError: nobody knows whether it was taken; call again.
        """

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """States by backend id, one question for many jobs; a job it cannot see is UNKNOWN, not GONE."""

    def cancel(self, job: Submission) -> None:
        """End the job by force, all its processes included. Blocking; idempotent."""

    def explain(self, job: Submission) -> str:
        """Why the job waits, in words; empty when it does not."""


@runtime_checkable
class CanSweep(Protocol):
    """Backends whose lost jobs may leave processes behind on a machine we can reach."""

    def sweep(self, job: Submission) -> int:
        """End what a job that is gone left behind; returns how many processes. Idempotent."""


@runtime_checkable
class CanHold(Protocol):
    """Backends whose jobs can wait for other tasks in the queue, where they hold no machine."""

    def let_go(self, job: Submission) -> None:
        """Let a job that was submitted with `queue.hold` start when there is room. Blocking; idempotent."""


@runtime_checkable
class CanUnqueue(Protocol):
    """Backends of whose jobs a part may run while another part waits in a queue."""

    def unqueue(self, job: Submission) -> None:
        """Take what waits of a job out of the queue, and leave alone what runs. Blocks until it is seen gone; idempotent.

        Raises:
            UnreachableError: the place does not answer, or did not do it in time; call again.
        """


@runtime_checkable
class CanSubmitMany(Protocol):
    """Backends that take many jobs of one shape at once."""

    def submit_many(self, rendered: Sequence[Rendered]) -> Sequence[Submission]:
        """As `Backend.submit` for each, in order, with fewer questions to the place; idempotent in the same way."""
