"""Interfaces of a command that acts on a run: its files, its site, its backend, and the clock.

`launcher.client` implements them. The simulation in tests/sim implements them in virtual time, so that it runs the
shipped submission, reconciler, stop, retry and resume, not a copy of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from windlass.backends.protocol import Backend, Rendered
from windlass.core.clock import Clock
from windlass.plan.plan import Plan
from windlass.record.frames import Record
from windlass.record.state import RunFacts

__all__ = ["ClientJournal", "ClientPorts", "RunFiles", "RunRecord", "SiteMirror"]


class ClientJournal(Protocol):
    """Journal of a run, as one client writes it."""

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        """Append one record; if `is_durable`, it is on the disk when this returns."""


class RunRecord(Protocol):
    """Record of a run and of its submissions."""

    def facts(self) -> RunFacts:
        """Read the journal and return the facts."""

    def job_folder(self, task: str, number: int) -> Path:
        """Return the path of one submission's folder."""


class RunFiles(RunRecord, Protocol):
    """Files of one run on this machine."""

    @property
    def id(self) -> str:
        """Return the run's id."""

    def has_plan(self) -> bool:
        """Return whether the run's folder is complete enough to act on the run."""

    def is_launching(self) -> bool:
        """Return whether the command that launches the run is still running."""

    def is_staged(self) -> bool:
        """Return whether all files that the run's jobs need are in its folder."""

    def is_own(self) -> bool:
        """Return whether this user owns the run."""

    def has_secrets(self) -> bool:
        """Return whether the run's delivered secrets still exist."""

    def missing_records(self, facts: RunFacts) -> list[str]:
        """Describe the records that are missing in the journal; call this only after the jobs are gone."""

    def open_journal(self) -> AbstractContextManager[ClientJournal]:
        """Open this client's file in the journal; the file is created with its first record."""

    def lock(self) -> AbstractContextManager[object]:
        """Hold the lock of commands that act on the run; wait while another holds it."""

    def remove_launch_lock(self) -> None:
        """Remove the lock file of a launch command that was killed. Idempotent."""


class SiteMirror(Protocol):
    """Local copy of a run at a site that shares no files with this machine."""

    @property
    def reads_requests(self) -> bool:
        """Return whether requests in the journal reach running jobs."""

    def pull(self) -> bool:
        """Pull the records written at the site.

        Raises UnreachableError, or NotFoundError if the run was never sent there.
        """

    def push(self) -> None:
        """Push this machine's records.

        They are on the site's disk when this returns. Raises the same errors as `pull`.
        """


class ClientPorts(Protocol):
    """All interfaces of one command that acts on one run."""

    @property
    def clock(self) -> Clock:
        """Return this machine's clock."""

    @property
    def files(self) -> RunFiles:
        """Return the run's files."""

    @property
    def plan(self) -> Plan:
        """Return the run's plan."""

    @property
    def site(self) -> SiteMirror | None:
        """Return the run's mirror; None if the run is on this machine."""

    def backend(self, *, patience_s: float | None = None) -> Backend:
        """Return the run's backend, which waits at most `patience_s` for a scheduler."""

    def rendered_job(self, task: str, number: int) -> tuple[Backend, Rendered]:
        """Return the backend that submits a recorded job, and the rendered request."""

    def new_token(self) -> str:
        """Return a random token for a new job."""

    def deliver_secrets(self) -> None:
        """Deliver the run's secrets to its supervisors. Idempotent."""

    def remove_secrets(self) -> None:
        """Remove the delivered secrets, on this machine or at the site. Idempotent."""
