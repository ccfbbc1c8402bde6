"""Fake scheduler for tests, whose jobs run as real processes.

It can delay, reject, preempt or hide jobs, and lose jobs and replies.

Verified: it passes the same conformance suite as the real backends. Jobs that it schedules run as local processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from windlass.backends import JobState, Observation, Rendered, Submission
from windlass.backends.local.backend import LocalBackend
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.supervise.job import JobDocument

__all__ = ["FakeBackend", "Faults"]


@dataclass
class Faults:
    """Numbers of faults to inject; each one counts down to zero.

    Attributes:
        lost_replies: submissions that are accepted but whose reply is lost.
        lost_requests: submissions that never arrive.
        refusal: why every submission is rejected; empty to accept them.
        is_hidden: observations see nothing at all.
        is_full: jobs wait in the queue until `schedule` is called.
    """

    lost_replies: int = 0
    lost_requests: int = 0
    refusal: str = ""
    is_hidden: bool = False
    is_full: bool = False


@dataclass
class _Job:
    rendered: Rendered
    inner: Submission | None = None
    is_cancelled: bool = False


@dataclass
class FakeBackend:
    """Scheduler in this process that identifies jobs by their token."""

    faults: Faults = field(default_factory=Faults)
    name: str = "fake"

    def __post_init__(self) -> None:
        self._local = LocalBackend()
        self._jobs: dict[str, _Job] = {}
        self.num_observations = 0

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return what `submit` sends; see `LocalBackend.render`."""
        return self._local.render(document, folder, archive)

    def submit(self, rendered: Rendered) -> Submission:
        """Queue the job unless its token is known; start it immediately unless `is_full` is set."""
        if self.faults.refusal:
            raise PreconditionError(self.faults.refusal, code="unschedulable")
        if self.faults.lost_requests:
            self.faults.lost_requests -= 1
            raise UnreachableError("the fake scheduler did not answer", hint="try again")
        if rendered.token not in self._jobs:
            self._jobs[rendered.token] = _Job(rendered)
            if not self.faults.is_full:
                self.schedule()
        if self.faults.lost_replies:
            self.faults.lost_replies -= 1
            raise UnreachableError("the fake scheduler did not answer", hint="try again")
        return self._outer(rendered.token)

    def schedule(self) -> int:
        """Start all waiting jobs and return their number."""
        waiting = [job for job in self._jobs.values() if job.inner is None and not job.is_cancelled]
        for job in waiting:
            job.inner = self._local.submit(job.rendered)
        return len(waiting)

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Return the observed states of all jobs in one call."""
        self.num_observations += 1
        return {job.backend_id: self._observe(job) for job in jobs}

    def _observe(self, submission: Submission) -> Observation:
        job = self._jobs.get(submission.backend_id)
        if self.faults.is_hidden:
            return Observation(state=JobState.UNKNOWN, detail="the fake scheduler is hidden")
        if job is None or job.is_cancelled:
            return Observation(state=JobState.GONE)
        if job.inner is None:
            return Observation(state=JobState.QUEUED, detail="no room")
        return self._local.observe([job.inner])[job.inner.backend_id]

    def cancel(self, job: Submission) -> None:
        """Kill a job, whether queued or running."""
        found = self._jobs.get(job.backend_id)
        if found is None:
            return
        found.is_cancelled = True
        if found.inner is not None:
            self._local.cancel(found.inner)

    def sweep(self, job: Submission) -> int:
        """Kill what is left of a job; see `LocalBackend.sweep`."""
        return self._local.sweep(job)

    def explain(self, job: Submission) -> str:
        """Return the reason why a job is waiting."""
        found = self._jobs.get(job.backend_id)
        return "the fake scheduler has no room" if found is not None and found.inner is None else ""

    def _outer(self, token: str) -> Submission:
        job = self._jobs[token]
        return Submission(backend_id=token, locator=f"fake://{token}", folder=job.rendered.folder)
