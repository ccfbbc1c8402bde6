"""Start gate of a task: upstream tasks, environment and leases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windlass.record.state import RunFacts, State
from windlass.supervise.job import JobDocument
from windlass.supervise.leases import acquire, local_resources, release

if TYPE_CHECKING:
    from windlass.supervise.builds.watch import BuildWatch

__all__ = ["StartGate"]


class StartGate:
    """Gate that the leader checks until it opens; it holds the task's leases until `close`.

    Args:
        job_folder: the job that holds the leases.
        holder: identity of the process that requests them.
    """

    def __init__(self, job: JobDocument, job_folder: Path, holder: str) -> None:
        self._job = job
        self._folder = job_folder
        self._holder = holder
        self._label = f"{job.run}/{job.task}"
        self._build = _watch(job) if job.paths.environment else None
        self.gpus: tuple[str, ...] = ()
        self._may_hold = True  # an earlier leader may have acquired the leases

    @property
    def _needs_lease(self) -> bool:
        lease = self._job.lease
        return bool(lease.folder) and bool(lease.gpus or lease.cpus or lease.memory_bytes)

    def failed_upstream(self, facts: RunFacts) -> str:
        """Return the name of an upstream task that ended without success, or ""."""
        for name in self._job.settings.after:
            state = facts.task(name).state
            if state.is_terminal and state is not State.SUCCEEDED:
                return name
        return ""

    def failed_environment(self, now: float) -> str:
        """Return why the task's environment cannot be built, or ""; call this before `reason`."""
        return self._build.look(now) if self._build is not None else ""

    def reason(self, facts: RunFacts) -> str:
        """Return why the task may not start yet, or "" if it may; its leases are then held."""
        waiting = [name for name in self._job.settings.after if facts.task(name).state is not State.SUCCEEDED]
        if waiting:
            return "waits for " + ", ".join(f"task {name}" for name in waiting)
        if self._build is not None and self._build.reason:
            return self._build.reason
        return self.take()

    def take(self) -> str:
        """Acquire the leases, or take over those of an earlier leader; return why not, or ""."""
        if not self._needs_lease:
            return ""
        self._may_hold = True
        self.gpus, reason = acquire(self._job.lease, self._folder, self._holder, self._label, local_resources())
        return reason

    def close(self) -> None:
        """Release the leases; idempotent, and free of cost after the first call."""
        if self._needs_lease and self._may_hold:
            release(self._job.lease, self._folder)
            self._may_hold, self.gpus = False, ()


def _watch(job: JobDocument) -> BuildWatch:
    from windlass.supervise.builds.watch import BuildWatch as Watch  # lazy: only sites have environments to wait for

    return Watch(job.paths.environment, job.paths.build_lock)
