"""A virtual scheduler: takes submissions by token, loses replies, hides, and starts jobs again that have ended."""

from __future__ import annotations

from dataclasses import field

from tests.sim.cluster import Cluster
from tests.sim.guard import start_guard
from tests.sim.scenario import FaultPlan, TaskPlan
from windlass.backends.protocol import JobState, Observation
from windlass.core.dataclass import dataclass
from windlass.supervise.job import JobDocument, ReplicaCommand

__all__ = ["LostReplyError", "RefusedError", "VirtualBackend", "VirtualJob"]


_STALL_FLOOR_S = 12.0


class LostReplyError(Exception):
    """Nobody knows whether the submission was taken."""


class RefusedError(Exception):
    """The place says no for good."""


@dataclass(slots=True, kw_only=True)
class VirtualJob:
    """One job of the scheduler."""

    cluster: Cluster
    task: TaskPlan
    number: int
    token: str
    document: JobDocument
    has_started: bool = False
    is_cancelled: bool = False
    gone_since: float = field(default=-1.0)

    @property
    def folder(self) -> str:
        """Its folder below the run."""
        return f"jobs/{self.task.name}-{self.number}"

    @property
    def is_alive(self) -> bool:
        """Whether any guard or supervisor of it lives."""
        guards = (self.cluster.guards.get((self.folder, rank)) for rank in range(self.task.num_replicas))
        return any(guard is not None and guard.holds_lock for guard in guards)

    def start(self) -> None:
        """The scheduler starts it, for the first time or again."""
        if self.is_cancelled:
            return
        self.has_started = True
        for rank in range(self.task.num_replicas if self.task.is_scheduled_whole else 1):
            self.start_replica(rank)

    def start_replica(self, rank: int) -> None:
        """Start one replica's guard, where the node is up."""
        start_guard(self.cluster, self, rank)


class VirtualBackend:
    """The scheduler.

    Attributes:
        hidden_until: until then observations see nothing.
    """

    def __init__(self, cluster: Cluster, faults: FaultPlan) -> None:
        self._cluster, self._faults = cluster, faults
        self._jobs: dict[str, VirtualJob] = {}
        self._num_submissions = 0
        self.hidden_until = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is queued that nobody waits for; here a job is started soon."""
        return True

    @property
    def jobs(self) -> list[VirtualJob]:
        """All jobs there ever were."""
        return list(self._jobs.values())

    def submit(self, task: TaskPlan, number: int, token: str) -> str:
        """Take a job; idempotent by token. Returns the backend's id.

        Raises:
            LostReplyError: it was taken, or not; nobody knows.
            RefusedError: it will never be taken.
        """
        if self._faults.is_refusing:
            raise RefusedError("no such partition")
        self._num_submissions += 1
        is_lost = self._num_submissions - 1 in self._faults.lost_replies
        if is_lost and self._cluster.world.chance(0.5):
            raise LostReplyError
        if token not in self._jobs:
            job = VirtualJob(
                cluster=self._cluster, task=task, number=number, token=token, document=_document(task, number, token)
            )
            self._jobs[token] = job
            self._cluster.monitor.on_submitted(job)
            self._cluster.world.at(self._cluster.world.uniform(0.05, 0.2) + self._faults.queue_s, job.start)
        if is_lost:
            raise LostReplyError
        return f"vj-{token}"

    def observe(self, backend_id: str) -> Observation:
        """What can be seen of a job."""
        return Observation(state=self._state(backend_id))

    def _state(self, backend_id: str) -> JobState:
        job = self._jobs.get(backend_id.removeprefix("vj-"))
        if job is None or self._cluster.world.now < self.hidden_until:
            return JobState.UNKNOWN
        if not job.has_started:
            return JobState.GONE if job.is_cancelled else JobState.QUEUED
        return JobState.RUNNING if job.is_alive else JobState.GONE

    def is_gone(self, backend_id: str) -> bool:
        """The truth, for the monitor: it was started and nothing of it lives."""
        job = self._jobs[backend_id.removeprefix("vj-")]
        return job.is_cancelled or (job.has_started and not job.is_alive)

    def cancel(self, backend_id: str) -> None:
        """Take a job out of the queue; one that has started meanwhile hears of the stop itself."""
        job = self._jobs[backend_id.removeprefix("vj-")]
        job.is_cancelled = not job.has_started

    def sweep(self, backend_id: str) -> None:
        """End processes of a job that have no supervisor any more."""
        job = self._jobs[backend_id.removeprefix("vj-")]
        for rank in range(job.task.num_replicas):
            guard = self._cluster.guards.get((job.folder, rank))
            if guard is None or not guard.holds_lock:
                for process in self._cluster.processes.of(job.token, rank):
                    process.kill()


def _document(task: TaskPlan, number: int, token: str) -> JobDocument:
    return JobDocument(
        run="sim-1",
        task=task.name,
        job=number,
        token=token,
        run_dir="",
        replicas=(ReplicaCommand(("python", "train.py")),) * task.num_replicas,
        cwd="",
        after=task.after,
        interrupted=task.budgets.interrupted,
        failed=task.budgets.failed,
        ready_timeout_s=task.ready_timeout_s,
        grace_s=task.grace_s,
        per_job_s=task.per_job_s,
        time_s=task.time_s,
        stall_floor_s=_STALL_FLOOR_S,
    )
