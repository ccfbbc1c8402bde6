"""The client's side of a virtual site: submit and find again, observe, cancel; the steps of `backends.slurm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.sim.cluster import Cluster
from tests.sim.scenario import FaultPlan, TaskPlan
from tests.sim.site.job import PENDING, SiteJob, SlurmLink, document_of
from tests.sim.site.plan import SitePlan
from tests.sim.site.slurm import VirtualSlurm
from tests.sim.site.slurm_commands import cancel, submit_link
from windlass.backends import JobState, Observation, Rendered, Submission
from windlass.backends.site_shell import LocalShell, ShellResult
from windlass.backends.slurm.observe import signs_of_life
from windlass.core.errors import PreconditionError, UnreachableError, WaitTimeoutError
from windlass.record.causes import Cause
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.cancels import end_of_cancelled
from windlass.supervise.slurm.job_listing import JobEnd, cause_of_end

__all__ = ["SiteBackend"]


class _VirtualShell(LocalShell):
    """Answers the one command of `signs_of_life`: how old the heartbeats of a job are on the server's clock."""

    def __init__(self, cluster: Cluster, job: SiteJob) -> None:
        super().__init__()
        self._cluster, self._job = cluster, job

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        """What `stat` says."""
        beats = self._cluster.heartbeats.get(self._job.folder, {})
        lines = [f"{int(float(beat))} {path}\n" for path, beat in beats.items()]
        return ShellResult(0, f"{int(self._cluster.world.now)} now\n" + "".join(lines), "")


class SiteBackend:
    """Queues jobs at the virtual site.

    Attributes:
        hidden_until: until then observations see nothing.
        pause: lets time pass for the client that calls.
    """

    name = "slurm"

    def __init__(self, cluster: Cluster, tasks: Sequence[TaskPlan], site: SitePlan, faults: FaultPlan) -> None:
        self._cluster, self._site, self._faults = cluster, site, faults
        self._tasks = {task.name: task for task in tasks}
        self.pause: Callable[[], None] = lambda: None
        self.slurm = VirtualSlurm(cluster, site, faults.lost_replies)
        self._jobs: dict[str, SiteJob] = {}
        self._submitted: dict[str, str] = {}
        self.hidden_until = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, runs, or is on its way into the queue."""
        links = self.slurm.links.values()
        return not self.slurm.num_landing and all(link.is_over and not link.is_completing for link in links)

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
        if token in self._submitted:
            return self._submitted[token]
        is_first = token not in self._jobs
        if is_first:
            document = document_of(self._site, task, number, token)
            job = SiteJob(slurm=self.slurm, task=task, number=number, token=token, document=document)
            self._jobs[token] = self.slurm.jobs[job.folder] = job
            self._cluster.monitor.on_submitted(job)
        job = self._jobs[token]
        if self.slurm.is_away:
            raise UnreachableError("the controller does not answer")
        links, goes_on = ({}, True) if is_first else self._find(job)
        self._queue(job, links, goes_on=goes_on)
        self._submitted[token] = f"sj-{token}"
        return self._submitted[token]

    def _queue(self, job: SiteJob, links: dict[int, str], *, goes_on: bool) -> None:
        try:
            for number in range(1, max(1, job.document.queue.num_queued) + 1):
                if goes_on and number not in links:
                    links[number] = submit_link(self.slurm, job.folder, number)
        except WaitTimeoutError as error:
            if not (links and job.document.chain.can_submit):
                raise UnreachableError("the reply to a submission is lost") from error

    def _find(self, job: SiteJob) -> tuple[dict[int, str], bool]:
        known = [link for link in self.slurm.of_job(job) if not link.is_over or self._remembers(link)]
        if known:
            return {link.number: str(link.id) for link in reversed(known)}, not all(link.is_over for link in known)
        first = self.slurm.first_of_link(job.folder, 1)
        return ({1: first}, False) if first else ({}, True)

    def _remembers(self, link: SlurmLink) -> bool:
        return self._cluster.world.now <= link.ended_at + self._site.remembers_s

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """What can be seen of jobs; see `Backend`."""
        seen = {job.backend_id: self._observe(job.backend_id) for job in jobs}
        for job in jobs:
            self._cluster.monitor.on_observed(str(job.folder), is_gone=self._is_gone(job.backend_id))
        self.pause()
        return seen

    def _observe(self, backend_id: str) -> Observation:
        job = self._jobs[backend_id.removeprefix("sj-")]
        if self.slurm.is_away or self._cluster.world.now < self.hidden_until:
            return Observation(state=JobState.UNKNOWN)
        links = [link for link in self.slurm.of_job(job) if not link.is_over or link.is_completing]
        waiting = tuple(str(link.id) for link in links if link.state == PENDING)
        if any(link.state != PENDING for link in links):
            return Observation(state=JobState.RUNNING, waiting=waiting)
        if links:
            return Observation(state=JobState.QUEUED, waiting=waiting)
        past = [link for link in self.slurm.of_job(job) if self._site.has_accounting or self._remembers(link)]
        run = [link for link in past if link.nodes] or past
        ended = self._how_ended(job, run[-1]) if run else None
        signs = signs_of_life(
            _VirtualShell(self._cluster, job), job.document, Path(job.folder), is_known=ended is not None
        )
        if ended is None:
            return Observation(state=JobState.GONE, detail="Slurm no longer has it", signs=signs)
        cause = "" if ended.cause is Cause.UNKNOWN else str(ended.cause)
        return Observation(state=JobState.GONE, detail=ended.message, cause=cause, signs=signs)

    def _how_ended(self, job: SiteJob, link: SlurmLink) -> JobEnd | None:
        """As `backends.slurm.failed_start.how_ended`."""
        has_begun = self.slurm.first_of_link(job.folder, link.number) == str(link.id)
        ended = cause_of_end(link.state, link.reason, has_begun=has_begun)
        if ended is None or ended.cause is not Cause.CANCELLED or not link.nodes:
            return ended
        by, reasons = link.by if self._site.has_accounting else None, [self.slurm.reason_of(n.name) for n in link.nodes]
        return end_of_cancelled(by=by, reasons=reasons, has_begun=has_begun, is_later_start=False, nodes="its nodes")

    def _is_gone(self, backend_id: str) -> bool:
        """The truth, for the monitor: no link waits or runs, nor user code of one that was forgotten."""
        job = self._jobs[backend_id.removeprefix("sj-")]
        return all(link.is_over for link in self.slurm.of_job(job)) and not self._lives_on(job)

    def _lives_on(self, job: SiteJob) -> bool:
        """Whether user code runs of a job that the controller forgot."""
        guards = [guard for guard in self._cluster.guards.values() if guard.job is job and guard.holds_lock]
        return job.folder in self.slurm.orphans and any(child.runs for guard in guards for child in guard.children)

    def unqueue(self, job: Submission) -> None:
        """End the links that wait; see `CanUnqueue`."""
        self._end(job.backend_id, PENDING)

    def cancel(self, job: Submission) -> None:
        """End all links, first those that wait."""
        self._end(job.backend_id)

    def explain(self, job: Submission) -> str:
        """See `Backend`."""
        return ""

    def _end(self, backend_id: str, state: str = "") -> None:
        if self.slurm.is_away:
            return
        job = self._jobs[backend_id.removeprefix("sj-")]
        for link in sorted(self.slurm.of_job(job), key=lambda link: link.state != PENDING):
            if not link.is_over and link.state in (state, state or link.state):
                if self.slurm.watch is not None:
                    self.slurm.watch.on_cancelled(link)
                cancel(self.slurm, link)
