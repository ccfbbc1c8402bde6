"""What must hold of chains of links: they go on without anybody, end with their task, and causes are the true ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.site.job import PENDING, RUNNING, SiteJob, SlurmLink
from tests.sim.world import Violation
from windlass.record import events
from windlass.record.causes import Cause, cause_of
from windlass.record.frames import Record
from windlass.record.state import TaskFacts
from windlass.supervise.gang.incarnation import Incarnation

if TYPE_CHECKING:
    from tests.sim.invariants import Monitor
    from tests.sim.process import VirtualProcess
    from tests.sim.site.slurm import VirtualSlurm

__all__ = ["ChainWatch"]

_NUM_AHEAD = 3
_AGAIN_S = 150.0
"""What could not be queued is tried again within a minute; a link may die before."""

_CANCELLED_WITHIN_S = 4.0
_GONE_WITHIN_S = 40.0
"""After the end of its task nothing of a job runs, as far as the scheduler knows."""

_CALM_S = 12.0
_PATIENCE_S = 40.0
_EARLY_S = 61.0
"""A signal so long before its time is taken for that of the walltime."""

_YOUNG_S = 10.0
"""A link that dies so soon may have queued none of those after it."""

_OF_FAULT = {
    "walltime": Cause.WALLTIME,
    "preempted": Cause.PREEMPTED,
    "cancelled": Cause.CANCELLED,
    "node-lost": Cause.NODE_LOST,
    "srun": Cause.KILLED,
}


class ChainWatch:
    """Sees the scheduler's jobs and the journal; raises `Violation`."""

    def __init__(self, slurm: VirtualSlurm, monitor: Monitor) -> None:
        self._slurm, self._monitor, self._world = slurm, monitor, slurm.world
        self._num_queued: dict[SiteJob, int] = {}
        self._num_started: dict[SiteJob, int] = {}
        self._num_excused: dict[SiteJob, int] = {}
        self._newest: dict[SiteJob, int] = {}
        self._excused_until: dict[SiteJob, float] = {}
        self._unanswered_at = -1e9
        self._faults: dict[tuple[str, str], set[str]] = {}
        self._users: dict[tuple[str, int], str] = {}
        self._links: dict[tuple[str, str], SlurmLink] = {}
        slurm.watch = self

    # --- what happens ------------------------------------------------------------------------------------------------

    def on_queued(self, link: SlurmLink) -> None:
        """A link is in the queue."""
        self._num_queued[link.job] = self._num_queued.get(link.job, 0) + 1

    def on_started(self, link: SlurmLink) -> None:
        """The scheduler gives it nodes, some of which may be of no use already."""
        if any(node.is_cut_from_scheduler or node.is_stalled or not node.is_up for node in link.nodes):
            self.on_fault(link, "other")
        self._num_started[link.job] = self._num_started.get(link.job, 0) + 1
        self._newest[link.job] = max(link.number, self._newest.get(link.job, 0))

    def on_guard(self, link: SlurmLink, incarnation: Incarnation) -> None:
        """A replica of a start of it begins: always in the same job of the scheduler."""
        other = self._users.setdefault((link.job.folder, link.number), str(link.id))
        if other != str(link.id):
            self._fail(f"link {link.number} of {link.job.folder} begins in job {link.id}, though {other} is that link")
        self._links[link.job.folder, incarnation.name] = link

    def on_ended(self, link: SlurmLink) -> None:
        """Its state is final, or it is put back into the queue."""
        if link.started_at > self._world.now - _YOUNG_S:
            self._excuse(link.job, _AGAIN_S)
        self._world.at(1.0, self._check_goes_on, link.job)

    def on_fault(self, link: SlurmLink, kind: str) -> None:
        """Something hits the present start of a link."""
        self._faults.setdefault((link.job.folder, link.incarnation_name), set()).add(kind)

    def on_fault_everywhere(self) -> None:
        """Something hits a process, and it is not known whose."""
        for link in self._slurm.links.values():
            if link.state == RUNNING or link.is_completing:
                self.on_fault(link, "other")

    def was_hit(self, name: str) -> bool:
        """Whether something hit the start of a link of a task that runs now."""
        running = [link for link in self._slurm.links.values() if link.state == RUNNING and link.job.task.name == name]
        return any(self._faults.get((link.job.folder, link.incarnation_name)) for link in running)

    def is_cancelled(self, name: str) -> bool:
        """Whether somebody cancelled links of a task in the scheduler."""
        return any(
            "cancelled" in kinds for (folder, _), kinds in self._faults.items() if folder.startswith(f"jobs/{name}-")
        )

    def on_timed_out(self, link: SlurmLink) -> None:
        """The scheduler ends it by its walltime, which a leader that lives does not let happen."""
        was_hit = bool(self._faults.get((link.job.folder, link.incarnation_name)))
        users = [p for p in self._monitor.living_of(link.job.task.name) if p.incarnation == link.incarnation_name]
        if (
            any(not process.was_disturbed for process in users)
            and not was_hit
            and self._monitor.last_fault_at < link.started_at
        ):
            self._fail(f"link {link.number} of {link.job.folder} runs into its walltime, and nothing had held it up")

    def is_known_gap(self, process: VirtualProcess) -> bool:
        """Whether the scheduler called a job over by its walltime or the like while it could not reach a node of it.

        Its successor takes the scheduler's word, and the fence closes only some time later.
        """
        link = self._links.get((f"jobs/{process.task.name}-{process.job}", process.incarnation))
        return link is not None and link.is_unheard

    def on_cancelled(self, link: SlurmLink) -> None:
        """Somebody cancels it who is no leader."""
        self.on_fault(link, "cancelled")
        if link.state == PENDING:
            self._excuse(link.job, 1e9)

    def on_forgotten(self, link: SlurmLink) -> None:
        """The scheduler does not know any more that it is queued; the leader looks again every ten minutes."""
        self.on_fault(link, "amnesia")
        self._excuse(link.job, 1e9)

    def on_lost_reply(self, job: SiteJob) -> None:
        """Nobody knows whether a link is queued."""
        self._excuse(job, _AGAIN_S)

    def on_unanswered(self) -> None:
        """The scheduler was asked, and did not answer."""
        self._unanswered_at = self._world.now

    def _excuse(self, job: SiteJob, seconds: float) -> None:
        self._num_excused[job] = self._num_excused.get(job, 0) + 1
        self._excused_until[job] = max(self._excused_until.get(job, 0.0), self._world.now + seconds)

    def on_user_code(self, process: VirtualProcess) -> None:
        """User code runs: in a start of a link that is known."""
        assert (f"jobs/{process.task.name}-{process.job}", process.incarnation) in self._links

    def on_record(self, record: Record) -> None:
        """A record is durable."""
        if record.kind == events.ATTEMPT_ENDED:
            self._check_cause(record)
        elif record.kind == events.JOB_GONE:
            self._check_left(f"jobs/{record.data['task']}-{record.data['job']}")
        elif record.kind == events.PROCESS_ENDED:
            self._check_process(record)
        elif record.kind == events.TASK_ENDED:
            self._world.at(_CANCELLED_WITHIN_S, self._check_cancelled, record.data["task"], self._world.now)
            self._world.at(_GONE_WITHIN_S, self._check_gone, record.data["task"], self._world.now)
        elif record.kind == events.TASK_QUEUED and record.data["reason"].endswith("is certainly over"):
            patience_s = self._slurm.site.fencing.quiet_s + _PATIENCE_S
            self._world.at(patience_s, self._check_waits, record.data["task"], record.writer, self._world.now)

    # --- judgements --------------------------------------------------------------------------------------------------

    def _job(self, task: TaskFacts) -> SiteJob | None:
        return self._slurm.jobs.get(f"jobs/{task.name}-{task.newest_job}")

    def _is_excused(self, job: SiteJob) -> bool:
        """Whether links may be missing, or too many, by what went wrong."""
        is_unheard = self._world.now < self._unanswered_at + _AGAIN_S
        return is_unheard or self._world.now < self._excused_until.get(job, 0.0)

    def _is_dead(self, job: SiteJob) -> bool:
        """Whether nothing of a job whose task is open waits or runs."""
        task = self._monitor.facts.task(job.task.name)
        is_open = task.end is None and task.newest_job == job.number
        return is_open and all(link.is_over for link in self._slurm.of_job(job))

    def _check_goes_on(self, job: SiteJob) -> None:
        if not self._is_dead(job) or self._is_excused(job):
            return
        most = job.document.chain.num_links
        if self._slurm.site.mode != "successor" or self._newest.get(job, 0) >= most:
            return  # its last link died before it could say so, or is not queued again: a client does it
        if self._were_last_two_hit(job):
            return  # one before it could queue the next, and the other after it
        if not job.document.chain.can_submit and self._num_queued.get(job, 0) < most:
            return  # the client died before it had queued all
        self._fail(f"the chain of {job.folder} ends after link {self._newest.get(job, 0)}, and the task does not")

    def _were_last_two_hit(self, job: SiteJob) -> bool:
        newest = sorted((link for link in self._slurm.of_job(job) if link.started_at >= 0), key=lambda link: link.id)[
            -2:
        ]
        hit = [self._faults.get((job.folder, link.incarnation_name), set()) - {"walltime"} for link in newest]
        return len(newest) == 2 and all(hit)

    def is_stuck(self) -> bool:
        """Whether some task needs a client to go on, by what went wrong before."""
        for task in self._monitor.facts.tasks.values():
            job = self._job(task)
            if task.end is None and (job is None or self._is_dead(job)) and not self._slurm.num_landing:
                return True
        return False

    def _check_cancelled(self, name: str, ended_at: float) -> None:
        task = self._monitor.facts.task(name)
        job = self._job(task)
        if job is None or task.end is None or self._monitor.last_fault_at > ended_at - _CALM_S:
            return
        waiting = [link.number for link in self._slurm.of_job(job) if link.state == PENDING]
        if waiting and not self._is_excused(job):
            self._fail(f"{name} ended at {ended_at:.1f} s, and links {waiting} are still queued")

    def _check_left(self, folder: str) -> None:
        """What is said to be gone from the queue is."""
        job = self._slurm.jobs[folder]
        left = [link.id for link in self._slurm.of_job(job) if not link.is_over]
        if left and not self._is_excused(job):
            self._fail(f"{folder} is said to be gone, and {left} of it are in the queue")

    def _check_gone(self, name: str, ended_at: float) -> None:
        task = self._monitor.facts.task(name)
        job = self._job(task)
        if job is None or task.end is None or self._monitor.last_fault_at > ended_at - _CALM_S:
            return
        running = [link.id for link in self._slurm.of_job(job) if link.state == RUNNING]
        if running and not self._is_excused(job):
            self._fail(f"{name} ended at {ended_at:.1f} s, and the scheduler has {running} running")

    def _check_waits(self, name: str, writer: str, since: float) -> None:
        """A link whose predecessor is gone, or was told to go, does not wait for it for ever."""
        task = self._monitor.facts.task(name)
        job = self._job(task)
        start = writer.split(".", 2)[2]
        link = self._links.get((job.folder, start)) if job is not None else None
        if link is None or link.state != RUNNING or link.incarnation_name != start or task.end is not None:
            return
        has_gone_on = any(
            attempt.incarnation == start or attempt.ended_at > since for attempt in task.attempts.values()
        )
        is_stalled = any(node.stalled_until > since - _PATIENCE_S for node in self._slurm.cluster.nodes)
        was_hit = self._faults.get((link.job.folder, start)) or is_stalled
        if not was_hit and not has_gone_on:
            self._fail(f"{writer} waits for its predecessor since {since:.1f} s, and nothing of it is left")

    def _check_process(self, record: Record) -> None:
        """Only the start of the job that began a process says how it ended; a later one says what its job died of."""
        writer = record.writer.split(".", 2)
        if len(writer) < 3:
            return  # a client
        attempt = self._monitor.facts.task(record.data["task"]).attempts[record.data["attempt"]]
        known, end = attempt.replicas[record.data["rank"]].incarnation, record.data["end"]
        has_seen = bool(end.get("host") or end.get("code")) or end.get("cause") == Cause.OK
        if known and known != writer[2] and has_seen:
            self._fail(f"{record.writer} says how the process of rank {record.data['rank']} in start {known} ended")

    def _check_cause(self, record: Record) -> None:
        """Where one thing hit the start of the link, that is the cause; and nothing is blamed that did not happen."""
        name, number = record.data["task"], record.data["attempt"]
        task = self._monitor.facts.task(name)
        attempt = task.attempts[number]
        link = self._links.get((f"jobs/{name}-{attempt.job}", attempt.incarnation))
        if attempt.end is None or link is None or task.is_stop_wanted:
            return
        kinds = self._faults.get((link.job.folder, attempt.incarnation), set())
        cause = cause_of(attempt.end.cause)
        self._check_blame(f"{name} attempt {number}", attempt.incarnation, cause, kinds, link)
        processes = self._monitor.processes_of(name, number)
        is_own = any(process.code not in (None, 0) and not process.was_disturbed for process in processes)
        if is_own or len(kinds) != 1 or cause is Cause.OK or len(processes) < link.job.task.num_replicas:
            return
        expected = _OF_FAULT.get(next(iter(kinds)))
        if self._slurm.site.mode == "requeue" and cause is Cause.PREEMPTED:
            return  # a job that is put back into the queue is not told why
        if cause is Cause.UNKNOWN and not self._slurm.site.has_accounting:
            return  # Slurm has forgotten the job, and nothing else says how it ended
        is_other = expected is not None and cause not in (expected, Cause.WALLTIME, Cause.TIMEOUT, Cause.STALLED)
        if is_other and self._world.now > self._unanswered_at + _AGAIN_S:
            self._fail(f"{name} attempt {number} is said to end by {cause}, and it was {expected}")

    def _check_blame(self, what: str, start: str, cause: Cause, kinds: set[str], link: SlurmLink) -> None:
        if self._world.now < self._unanswered_at + _AGAIN_S:
            return
        if cause is Cause.CANCELLED and not self._is_job_cancelled(link):
            self._fail(f"{what} is said to be cancelled, and nobody cancelled start {start}")
        if cause is Cause.NODE_LOST and not kinds:
            self._fail(f"{what} is said to have lost a node, and nothing happened to start {start}")
        limit_s = link.job.task.per_job_s or 0.0
        soonest_s = min(0.35 * limit_s, limit_s - _EARLY_S - self._slurm.site.signal_before_s)
        is_early = start == link.incarnation_name and "walltime" not in kinds
        if cause is Cause.WALLTIME and is_early and self._world.now < link.started_at + soonest_s:
            self._fail(f"{what} is said to have ended by walltime, and start {start} had just begun")

    def _is_job_cancelled(self, link: SlurmLink) -> bool:
        """Whether any start of one of the scheduler's jobs was cancelled."""
        starts = (self._faults.get((link.job.folder, f"{link.id}.{restart}"), ()) for restart in range(20))
        return any("cancelled" in kinds for kinds in starts)

    def judge(self) -> None:
        """At the very end: nothing is left in the queue, and there were no more links than were of use."""
        left = [link.id for link in self._slurm.links.values() if not link.is_over]
        if left:
            self._fail(f"the run has ended, and {left} of it are in the queue")
        for job, queued in self._num_queued.items():
            if not job.document.chain.can_submit:
                continue
            most = self._num_started.get(job, 0) + _NUM_AHEAD + self._num_excused.get(job, 0)
            if queued > most:
                self._fail(f"{queued} links of {job.folder} were queued, and {self._num_started.get(job, 0)} started")

    def _fail(self, message: str) -> None:
        raise Violation(message)
