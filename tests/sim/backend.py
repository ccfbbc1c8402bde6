"""A virtual scheduler: takes submissions by token, loses replies, hides, and starts jobs again that have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from tests.sim.cluster import Cluster
from tests.sim.guard import start_guard
from tests.sim.scenario import FaultPlan, TaskPlan
from windlass.backends import JobState, Observation, Rendered, Submission
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, TaskSettings, TaskShape

__all__ = ["VirtualBackend", "VirtualJob"]


_STALL_FLOOR_S = 12.0


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
        pause: lets time pass for the client that calls.
    """

    name = "local"

    def __init__(self, cluster: Cluster, tasks: Sequence[TaskPlan], faults: FaultPlan) -> None:
        self._cluster, self._faults = cluster, faults
        self._tasks = {task.name: task for task in tasks}
        self.pause: Callable[[], None] = lambda: None
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

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """See `Backend`."""
        return Rendered(folder=folder, files={}, argv=(), token=document.token)

    def submit(self, rendered: Rendered) -> Submission:
        """Take a job; idempotent by token; see `Backend`."""
        self.pause()
        name, _, number = rendered.folder.name.rpartition("-")
        submission = Submission(
            backend_id=self._take(self._tasks[name], int(number), rendered.token), locator="", folder=rendered.folder
        )
        self.pause()
        return submission

    def _take(self, task: TaskPlan, number: int, token: str) -> str:
        if self._faults.is_refusing:
            raise PreconditionError("no such partition")
        self._num_submissions += 1
        is_lost = self._num_submissions - 1 in self._faults.lost_replies
        if is_lost and self._cluster.world.chance(0.5):
            raise UnreachableError("the reply to the submission is lost")
        if token not in self._jobs:
            job = VirtualJob(
                cluster=self._cluster, task=task, number=number, token=token, document=_document(task, number, token)
            )
            self._jobs[token] = job
            self._cluster.monitor.on_submitted(job)
            self._cluster.world.at(self._cluster.world.uniform(0.05, 0.2) + self._faults.queue_s, job.start)
        if is_lost:
            raise UnreachableError("the reply to the submission is lost")
        return f"vj-{token}"

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """What can be seen of jobs; see `Backend`."""
        seen = {job.backend_id: Observation(state=self._state(job.backend_id)) for job in jobs}
        for job in jobs:
            self._cluster.monitor.on_observed(str(job.folder), is_gone=self._is_gone(job.backend_id))
        self.pause()
        return seen

    def _state(self, backend_id: str) -> JobState:
        job = self._jobs.get(backend_id.removeprefix("vj-"))
        if job is None or self._cluster.world.now < self.hidden_until:
            return JobState.UNKNOWN
        if not job.has_started:
            return JobState.GONE if job.is_cancelled else JobState.QUEUED
        return JobState.RUNNING if job.is_alive else JobState.GONE

    def _is_gone(self, backend_id: str) -> bool:
        """The truth, for the monitor: it was started and nothing of it lives."""
        job = self._jobs[backend_id.removeprefix("vj-")]
        return job.is_cancelled or (job.has_started and not job.is_alive)

    def cancel(self, job: Submission) -> None:
        """Take a job out of the queue; one that has started meanwhile is told of the stop itself."""
        found = self._jobs[job.backend_id.removeprefix("vj-")]
        found.is_cancelled = not found.has_started

    def explain(self, job: Submission) -> str:
        """See `Backend`."""
        return ""

    def sweep(self, job: Submission) -> int:
        """End processes of a job that have no supervisor any more; see `CanSweep`."""
        return self._sweep(self._jobs[job.backend_id.removeprefix("vj-")])

    def _sweep(self, job: VirtualJob) -> int:
        num_ended = 0
        for rank in range(job.task.num_replicas):
            guard = self._cluster.guards.get((job.folder, rank))
            if guard is None or not guard.holds_lock:
                for process in self._cluster.processes.of(job.token, rank):
                    process.kill()
                    num_ended += 1
        return num_ended


def _document(task: TaskPlan, number: int, token: str) -> JobDocument:
    return JobDocument(
        run="sim-1",
        task=task.name,
        job=number,
        token=token,
        paths=JobPaths(""),
        shape=TaskShape(nodes=task.num_replicas),
        command=ReplicaCommand(("python", "train.py"), cwd=""),
        settings=TaskSettings(
            after=task.after,
            interrupted=task.budgets.interrupted,
            failed=task.budgets.failed,
            ready_timeout_s=task.ready_timeout_s,
            grace_s=task.grace_s,
            per_job_s=task.per_job_s,
            time_s=task.time_s,
            stall_floor_s=_STALL_FLOOR_S,
        ),
    )
