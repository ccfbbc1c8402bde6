"""A virtual Slurm: a queue of links, nodes that it gives and takes, and a memory that it may lose.

It behaves as a real one was seen to: what a signal, a cancel, a walltime, a preemption, a node that does not answer and
a controller that comes back with old state do to a job and its processes. It decides nothing of windlass.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.sim.cluster import Cluster
from tests.sim.guard import VirtualGuard
from tests.sim.node import Node
from tests.sim.site.job import PENDING, RUNNING, SiteJob, SlurmLink
from tests.sim.site.plan import SitePlan
from tests.sim.site.slurm_commands import answer
from windlass.core.process import Completed
from windlass.supervise.chain.scheduler import JobScheduler, SchedulerError
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.slurm.scheduler import SlurmScheduler

if TYPE_CHECKING:
    from tests.sim.site.chain_watch import ChainWatch

__all__ = ["VirtualSlurm"]

_FIRST_ID = 11
_KILLED = 137
_PERSON = 1000


class VirtualSlurm:
    """The controller and its nodes.

    Attributes:
        links: all it knows, by id.
        away_until: until then it answers nobody.
        deaf_until: until then it forgets that it was told to cancel what waits.
        orphans: folders of jobs that it forgot while they ran.
        num_landing: submissions on their way whose reply is lost already.
        lost_replies: numbers (from 0) of the submissions whose reply is lost.
    """

    def __init__(self, cluster: Cluster, site: SitePlan, lost_replies: frozenset[int]) -> None:
        self.cluster, self.world, self.site, self.lost_replies = cluster, cluster.world, site, lost_replies
        self.links: dict[int, SlurmLink] = {}
        self.jobs: dict[str, SiteJob] = {}
        self.away_until = 0.0
        self.deaf_until = 0.0
        self.orphans: set[str] = set()
        self.num_landing = 0
        self.num_submissions = 0
        self.watch: ChainWatch | None = None
        self._next_id = _FIRST_ID
        self._num_starts = 0
        self._busy: dict[str, SlurmLink] = {}
        self._first_by_link: dict[tuple[str, int], str] = {}
        self._incarnations: dict[tuple[str, str], Incarnation] = {}
        self._refusing: dict[str, float] = {}

    # --- the queue ---------------------------------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        """Whether it answers nobody."""
        return self.world.now < self.away_until

    def runner(self, node: Node) -> Callable[[Sequence[str], Mapping[str, str]], Completed]:
        """Its command line as reached from a node."""
        return lambda argv, env: answer(self, node, argv)

    def first_of_link(self, folder: str, number: int) -> str:
        """Which job began as a link, as its file says; empty when none did."""
        return self._first_by_link.get((folder, number), "")

    def of_job(self, job: SiteJob) -> list[SlurmLink]:
        """All links of a job of ours, by id."""
        return [link for link in self.links.values() if link.job is job]

    def add(self, job: SiteJob, number: int, exclude: frozenset[str] = frozenset()) -> SlurmLink:
        """Take a submission."""
        now = self.world.now
        eligible_at = now + self.world.uniform(0.0, self.site.queue_s)
        link = SlurmLink(
            id=self._next_id, job=job, number=number, submitted_at=now, eligible_at=eligible_at, exclude=exclude
        )
        self._next_id += 1
        self.links[link.id] = link
        self.world.log("slurm: %s link %d is queued as %d", job.folder, number, link.id)
        self._look_later(eligible_at - now)
        if self.watch is not None:
            self.watch.on_queued(link)
        return link

    def _look_later(self, delay: float) -> None:
        self.world.at(delay + 0.05, self.schedule)

    def schedule(self) -> None:
        """Start what may start."""
        if self.is_away:
            self._look_later(self.away_until - self.world.now)
            return
        for link in [link for link in self.links.values() if link.state == PENDING]:
            if link.eligible_at <= self.world.now and not self._waits_for_others(link):
                free = [node for node in self.cluster.nodes if self._is_free(node) and node.name not in link.exclude]
                if len(free) >= link.job.task.num_replicas:
                    self._start(link, tuple(self.world.random.sample(free, link.job.task.num_replicas)))

    def _is_free(self, node: Node) -> bool:
        return node.name not in self._busy and not node.is_down and not self.reason_of(node.name)

    def reason_of(self, node: str) -> str:
        """Why a node is drained; empty when it is not."""
        return "Duplicate jobid" if self.world.now < self._refusing.get(node, 0.0) else ""

    def _waits_for_others(self, link: SlurmLink) -> bool:
        """`--dependency=singleton`."""
        for other in self.links.values():
            if other is link or other.name != link.name:
                continue
            is_completing = other.is_completing and not self.site.is_singleton_early
            if other.state == RUNNING or is_completing or (other.state == PENDING and other.id < link.id):
                return True
        return False

    # --- the life of a link ------------------------------------------------------------------------------------------

    def _start(self, link: SlurmLink, nodes: tuple[Node, ...]) -> None:
        self._num_starts += 1
        link.state, link.reason, link.nodes, link.start = RUNNING, "None", nodes, self._num_starts
        link.started_at, link.code, link.is_preempted = self.world.now, 0, False
        link.left, link.abandoned, link.num_forgotten = set(range(len(nodes))), set(), 0
        while (link.job.folder, link.incarnation_name) in self._incarnations:
            link.num_forgotten += 1
        self._busy.update({node.name: link for node in nodes})
        names = ", ".join(node.name for node in nodes)
        self.world.log("slurm: %d (%s link %d) starts on %s", link.id, link.job.folder, link.number, names)
        limit_s = link.job.task.per_job_s or 1e9
        before_s = self.site.signal_before_s
        if before_s:
            early_s = self.world.uniform(0.0, 60.0)
            self.world.at(max(1.0, limit_s - before_s - early_s), self._warn, link, link.start)
        self.world.at(limit_s + self.world.uniform(0.0, self.site.late_s), self._time_out, link, link.start)
        for rank in range(len(nodes)):
            self.world.at(self.world.uniform(0.05, 1.0), self._start_rank, link, link.start, rank)
        if self.watch is not None:
            self.watch.on_started(link)

    def _start_rank(self, link: SlurmLink, start: int, rank: int) -> None:
        """A task of srun starts: it finds out whether its job is this link, and becomes a guard."""
        node = link.nodes[rank] if link.start == start and link.state == RUNNING else None
        if node is None or not node.is_up:
            return
        if node.is_stalled:
            self.world.at(node.stalled_until - self.world.now + 0.01, self._start_rank, link, start, rank)
            return
        incarnation = self._enter(link, node)
        if incarnation is None:
            self.world.log("slurm: %d is no link: another job is link %d", link.id, link.number)
            self._on_rank_end(link, start, rank, 0)
            return
        key = (_place_of(link.job, incarnation.name), rank)
        present = self.cluster.guards.get(key)
        if present is not None and present.holds_lock:
            self._on_rank_end(link, start, rank, 0)
            return
        guard = VirtualGuard(
            self.cluster,
            link.job,
            rank,
            node,
            incarnation,
            on_end=lambda code: self._on_guard_end(link, start, rank, code, incarnation),
        )
        self.cluster.guards[key] = guard
        if self.watch is not None:
            self.watch.on_guard(link, incarnation)
        guard.begin()

    def _enter(self, link: SlurmLink, node: Node) -> Incarnation | None:
        """As `incarnation.enter_link`."""
        job_id = str(link.id)
        if self._first_by_link.setdefault((link.job.folder, link.number), job_id) != job_id:
            return None
        limit_s = link.job.task.per_job_s or 0.0
        began_at = node.clock.now()
        found = Incarnation(
            name=link.incarnation_name,
            link=link.number,
            job_id=job_id,
            began_at=began_at,
            is_unknown_restart=link.num_forgotten > 0,
            ends_at=began_at - self.world.now + link.started_at + limit_s
            if self.site.has_end_time and limit_s
            else 0.0,
        )
        return self._incarnations.setdefault((link.job.folder, found.name), found)

    def _on_guard_end(self, link: SlurmLink, start: int, rank: int, code: int, incarnation: Incarnation) -> None:
        if link.start == start and rank in link.abandoned and link.state == RUNNING and code != _KILLED:
            self._end_abandoned(link.job.scheduler_for(link.nodes[rank], incarnation), link, start)
        else:
            self._on_rank_end(link, start, rank, code)

    def _end_abandoned(self, scheduler: JobScheduler, link: SlurmLink, start: int) -> None:
        """As `step_daemon.StepDaemons.end_abandoned_job`."""
        assert isinstance(scheduler, SlurmScheduler)
        state = "?"
        with contextlib.suppress(SchedulerError):
            state = scheduler.end_this_start() if link.start == start else ""
        if state:
            self.world.at(2.0, self._end_abandoned, scheduler, link, start)

    def _on_rank_end(self, link: SlurmLink, start: int, rank: int, code: int) -> None:
        node = link.nodes[rank] if link.start == start else None
        if node is None or not node.is_up:
            return
        if node.is_cut_from_scheduler:  # nobody hears of it before the node is back
            self.world.at(5.0, self._on_rank_end, link, start, rank, code)
            return
        link.left.discard(rank)
        link.code = max(link.code, code)
        if link.is_completing:
            self._complete(link)
        elif not link.left and link.state == RUNNING:
            self._end(link, "COMPLETED" if not link.code else "FAILED", "None" if not link.code else "NonZeroExitCode")
            self._complete(link)

    def _end(self, link: SlurmLink, state: str, reason: str) -> None:
        """Its state is final from now on, whatever still lives of it."""
        self.world.log("slurm: %d (%s link %d) is %s", link.id, link.job.folder, link.number, state)
        link.state, link.reason, link.ended_at, link.is_completing = state, reason, self.world.now, True
        if self.watch is not None:
            self.watch.on_ended(link)
        self._look_later(0.1)

    def _complete(self, link: SlurmLink) -> None:
        """Give back the nodes on which nothing is left; those that do not answer stay until they do or are down."""
        for rank, node in enumerate(link.nodes):
            if self._busy.get(node.name) is link and (rank not in link.left or node.is_down or not node.is_up):
                del self._busy[node.name]
        link.is_completing = any(self._busy.get(node.name) is link for node in link.nodes)
        self._look_later(0.1)

    # --- ends --------------------------------------------------------------------------------------------------------

    def _guards(self, link: SlurmLink, *, is_reached: bool = True) -> list[VirtualGuard]:
        """Guards of the present start, on nodes that can be reached."""
        place = _place_of(link.job, link.incarnation_name)
        found = [self.cluster.guards.get((place, rank)) for rank in range(len(link.nodes))]
        return [
            guard
            for guard in found
            if guard is not None and guard.holds_lock and not (is_reached and guard.node.is_cut_from_scheduler)
        ]

    def _signal(self, link: SlurmLink, number: int, *, to_users: bool = True) -> None:
        """To every process of its steps, the user's own included."""
        for guard in self._guards(link):
            guard.signal(number)
            if to_users:
                for process in list(guard.children):
                    if process.is_alive:
                        process.terminate()

    def terminate(self, link: SlurmLink, state: str, reason: str) -> None:
        """Its state is final now; its processes get SIGTERM, and SIGKILL when they live on."""
        link.by = _PERSON if state == "CANCELLED" else link.by
        if link.state == PENDING:
            link.state, link.reason, link.ended_at = state, reason, self.world.now
            if self.watch is not None:
                self.watch.on_ended(link)
            return
        if link.state != RUNNING:
            return
        if state != "NODE_FAIL" and any(node.is_cut_from_scheduler for node in link.nodes):
            link.is_unheard = True
        self._end(link, state, reason)
        self._signal(link, signal.SIGTERM)
        self.world.at(self.site.kill_wait_s, self._kill, link, link.start)

    def _kill(self, link: SlurmLink, start: int) -> None:
        if link.start != start:
            return
        self._kill_reachable(link)
        self._complete(link)

    def _kill_reachable(self, link: SlurmLink) -> None:
        for guard in self._guards(link):
            guard.kill_all()
        for rank, node in enumerate(link.nodes):
            if node.is_up and not node.is_cut_from_scheduler:
                link.left.discard(rank)

    def _warn(self, link: SlurmLink, start: int) -> None:
        """`--signal=B:USR1@N` to the batch shell, which is srun and passes it on."""
        if link.state == RUNNING and link.start == start:
            if self.watch is not None:
                self.watch.on_fault(link, "walltime")
            for guard in self._guards(link):
                guard.signal(signal.SIGUSR1)

    def _time_out(self, link: SlurmLink, start: int) -> None:
        if link.state == RUNNING and link.start == start:
            if self.watch is not None:
                self.watch.on_timed_out(link)
                self.watch.on_fault(link, "walltime")
            self.cluster.monitor.on_fault(self.world.now + self.site.kill_wait_s)
            self.terminate(link, "TIMEOUT", "TimeLimit")

    def preempt(self, link: SlurmLink) -> None:
        """A notice to the steps now, the end after the grace time."""
        link.is_preempted = True
        self._signal(link, signal.SIGTERM)
        late_s = self.world.uniform(0.0, 15.0) if self.site.late_s else 0.0
        self.world.at(self.site.notice_s + late_s, self._end_preempted, link, link.start)

    def _end_preempted(self, link: SlurmLink, start: int) -> None:
        if link.state != RUNNING or link.start != start:
            return
        if self.site.mode == "requeue":
            self.requeue(link)
        else:
            self.terminate(link, "PREEMPTED", "None")

    def requeue(self, link: SlurmLink) -> None:
        """End this start of it, and put it back into the queue."""
        if link.state != RUNNING:
            return
        if self.watch is not None:
            self.watch.on_ended(link)
        self.world.log("slurm: %d is put back into the queue", link.id)
        self._signal(link, signal.SIGTERM)
        self.world.at(self.site.kill_wait_s, self._put_back, link, link.start)
        link.state, link.reason, link.is_completing = "REQUEUED", "BeginTime", True

    def _put_back(self, link: SlurmLink, start: int) -> None:
        if link.start != start:
            return
        self._kill_reachable(link)
        for node in link.nodes:
            if self._busy.get(node.name) is link:
                del self._busy[node.name]
        link.restart, link.is_completing, link.nodes, link.left, link.start = link.restart + 1, False, (), set(), 0
        link.state, link.eligible_at = PENDING, self.world.now + self.site.hold_s
        self._look_later(self.site.hold_s)
        self._look_later(0.1)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def lose(self, node: Node) -> None:
        """A node stops answering; after a while it is down, and the jobs on it with it."""
        link = self._busy.get(node.name)
        if link is not None and link.is_completing:
            link.is_unheard = True
        self.world.at(self.site.down_after_s + self.world.uniform(0.0, 5.0), self._give_up, node)

    def _give_up(self, node: Node) -> None:
        if node.is_down or (node.is_up and not node.is_cut_from_scheduler):
            return
        if self.is_away:
            self.world.at(self.away_until - self.world.now + 1.0, self._give_up, node)
            return
        self.world.log("slurm: %s is down", node.name)
        node.is_down = True
        link = self._busy.get(node.name)
        if link is None:
            return
        if link.is_completing:
            self._complete(link)
        elif self.site.mode == "requeue":
            self.requeue(link)
        else:
            self.terminate(link, "NODE_FAIL", "NodeDown")
            self._complete(link)

    def find(self, node: Node) -> None:
        """A node answers again: what should not run there any more is ended, and it is used again."""
        if not node.is_up or node.is_cut_from_scheduler:
            return
        if self.is_away:
            self.world.at(self.away_until - self.world.now + 1.0, self.find, node)
            return
        link = self._busy.get(node.name)
        for guard in self.cluster.guards.values():
            is_wanted = link is not None and link.state == RUNNING and guard.incarnation.name == link.incarnation_name
            if guard.node is node and guard.holds_lock and not is_wanted:
                self._end_left_over(guard)
        if link is not None and link.state == RUNNING and not self._lives_on(link, node):
            self.terminate(link, "NODE_FAIL", "NodeDown")  # it came back without the job
        node.is_down = False
        self._look_later(0.2)

    def _lives_on(self, link: SlurmLink, node: Node) -> bool:
        if self.world.now < link.started_at + 2.0 or node.is_stalled:
            return True
        return any(guard.node is node for guard in self._guards(link)) or link.nodes.index(node) not in link.left

    def _end_left_over(self, guard: VirtualGuard) -> None:
        guard.signal(signal.SIGTERM)
        self.world.at(self.site.kill_wait_s, guard.kill_all)

    # --- its own memory ----------------------------------------------------------------------------------------------

    def forget(self, seconds: float) -> None:
        """It comes back with the state of some seconds ago; nodes tell it what they have, and it ends what it misses."""
        since = self.world.now - seconds
        for link in list(self.links.values()):
            if link.submitted_at > since:
                self._forget_submission(link)
            elif link.started_at > since and link.state != PENDING and not link.is_completing:
                self._forget_start(link)
            elif link.ended_at > since and link.started_at >= 0 and not link.is_completing:
                self._forget_end(link)
        self._look_later(0.5)

    def orphan(self, link: SlurmLink, until: float) -> None:
        """It forgets a job: what runs of it lives on until then."""
        self.orphans.add(link.job.folder)
        for guard in self._guards(link, is_reached=False):
            self.world.at(until - self.world.now, guard.kill_all)
        for each in self.of_job(link.job):
            self.world.log("slurm: %d is forgotten, and what runs of it lives on", each.id)
            if self.watch is not None:
                self.watch.on_forgotten(each)
            for node in each.nodes:
                if self._busy.get(node.name) is each:
                    del self._busy[node.name]
            each.start = 0
            del self.links[each.id]

    def _forget_submission(self, link: SlurmLink) -> None:
        if link.is_completing:
            return
        self.world.log("slurm: %d is forgotten", link.id)
        if self.watch is not None:
            self.watch.on_forgotten(link)
        self._kill_at_once(link)
        del self.links[link.id]
        self._next_id = min(self._next_id, link.id)

    def _forget_start(self, link: SlurmLink) -> None:
        self.world.log("slurm: the start of %d is forgotten", link.id)
        if self.watch is not None:
            self.watch.on_fault(link, "amnesia")
        if self.world.chance(0.5):
            self._refuse(link)
            return
        self._kill_at_once(link)
        link.state, link.nodes, link.left, link.start, link.ended_at = PENDING, (), set(), 0, -1.0

    def _refuse(self, link: SlurmLink) -> None:
        """It starts the job again where it runs: the first node refuses that, cancels it, and is drained for a while.

        What ran there is ended some time later, of which the controller knows nothing.
        """
        guards, nodes, start = self._guards(link, is_reached=False), link.nodes, link.start
        self._refusing[nodes[0].name] = self.world.now + self.world.uniform(20.0, 90.0)
        self.world.log("slurm: %s refuses %d, which it runs", nodes[0].name, link.id)
        link.state, link.reason, link.by, link.ended_at, link.start = "CANCELLED", "None", 0, self.world.now, 0
        link.is_unheard = True
        for node in nodes:
            if self._busy.get(node.name) is link:
                del self._busy[node.name]
        if self.watch is not None:
            self.watch.on_ended(link)
        for guard in guards:
            self.world.at(self.world.uniform(0.0, 3.0), guard.kill_all)
        self.cluster.monitor.on_fault(self.world.now + 3.0)
        self.world.log("slurm: start %d of %d is to be ended", start, link.id)

    def _forget_end(self, link: SlurmLink) -> None:
        """Its nodes do not know it any more: it failed with them, or is put back into the queue."""
        self.world.log("slurm: the end of %d is forgotten", link.id)
        if self.world.chance(0.5) or link.state == "CANCELLED":
            return
        link.restart, link.state, link.ended_at = link.restart + 1, PENDING, -1.0
        link.nodes, link.left, link.start = (), set(), 0
        link.eligible_at = self.world.now + self.site.hold_s
        self._look_later(self.site.hold_s)

    def _kill_at_once(self, link: SlurmLink) -> None:
        start, link.start = link.start, 0  # nothing of it counts any more
        for guard in self._guards(link, is_reached=False):
            guard.kill_all()
        for node in link.nodes:
            if self._busy.get(node.name) is link:
                del self._busy[node.name]
        self.world.log("slurm: start %d of %d is gone", start, link.id)


def _place_of(job: SiteJob, name: str) -> str:
    return f"{job.folder}/{name}"
