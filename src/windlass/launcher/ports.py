"""Ports of a command that acts on a run: its files, its site, its backend, and the clock.

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
    """Journal of a run as one client writes it."""

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        """Append one record; on the disk when this returns if it is durable."""


class RunRecord(Protocol):
    """Record of a run and of its submissions."""

    def facts(self) -> RunFacts:
        """Read the facts in the journal."""

    def job_folder(self, task: str, number: int) -> Path:
        """Return the folder of one submission."""


class RunFiles(RunRecord, Protocol):
    """Files of one run on this machine."""

    @property
    def id(self) -> str:
        """Id of the run."""

    def has_plan(self) -> bool:
        """Return whether the run's folder is complete enough to act on."""

    def is_launching(self) -> bool:
        """Return whether the command that launches the run is still running."""

    def is_staged(self) -> bool:
        """Return whether all files that the run's jobs need are in its folder."""

    def is_own(self) -> bool:
        """Return whether this user owns the run."""

    def has_secrets(self) -> bool:
        """Return whether the run's delivered secrets still exist."""

    def missing_records(self, facts: RunFacts) -> list[str]:
        """Describe records that are missing in the journal; call it only after the jobs are gone."""

    def open_journal(self) -> AbstractContextManager[ClientJournal]:
        """Open this client's file in the journal; it is created with its first record."""

    def lock(self) -> AbstractContextManager[object]:
        """Hold the lock of commands that act on the run; waits for other holders."""

    def remove_launch_lock(self) -> None:
        """Remove the lock file of a launch command that was killed. Idempotent."""


class SiteMirror(Protocol):
    """Copy of the run at a site that shares no files with this machine."""

    @property
    def reads_requests(self) -> bool:
        """Return whether requests in the journal reach running jobs."""

    def pull(self) -> bool:
        """Pull records written at the site. Raises UnreachableError, or NotFoundError if it was never sent there."""

    def push(self) -> None:
        """Push records of this machine; they are on the site's disk when this returns. Raises the same errors."""


class ClientPorts(Protocol):
    """All ports of one command that acts on one run."""

    @property
    def clock(self) -> Clock:
        """Clock of this machine."""

    @property
    def files(self) -> RunFiles:
        """Files of the run."""

    @property
    def plan(self) -> Plan:
        """Plan of the run."""

    @property
    def site(self) -> SiteMirror | None:
        """Mirror of the run at its site; None if it is on this machine."""

    def backend(self, *, patience_s: float | None = None) -> Backend:
        """Return the run's backend, which waits at most `patience_s` for a scheduler."""

    def rendered_job(self, task: str, number: int) -> tuple[Backend, Rendered]:
        """Return the backend that submits, and the rendered request of a recorded job."""

    def new_token(self) -> str:
        """Return a random token for a new job."""

    def deliver_secrets(self) -> None:
        """Deliver the run's secrets to its supervisors. Idempotent."""

    def remove_secrets(self) -> None:
        """Remove the delivered secrets, here or at the site. Idempotent."""
