"""What a job of ours is at a virtual site, and each of the scheduler's jobs that make up its chain."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from tests.sim.node import Node
from tests.sim.scenario import TaskPlan
from tests.sim.site.plan import SitePlan
from windlass.core.dataclass import dataclass
from windlass.supervise.chain.scheduler import JobScheduler
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.job import (
    ChainConfig,
    JobDocument,
    JobPaths,
    QueueRequest,
    ReplicaCommand,
    SiteSettings,
    TaskSettings,
    TaskShape,
)
from windlass.supervise.slurm.job_listing import comment_of, mark_of
from windlass.supervise.slurm.scheduler import SlurmScheduler

if TYPE_CHECKING:
    from tests.sim.site.slurm import VirtualSlurm

__all__ = ["SiteJob", "SlurmLink", "document_of"]

PENDING, RUNNING = "PENDING", "RUNNING"
_STALL_FLOOR_S = 40.0


@dataclass(slots=True, kw_only=True, eq=False)
class SiteJob:
    """A job of a task at a site: a chain of links."""

    slurm: VirtualSlurm
    task: TaskPlan
    number: int
    token: str
    document: JobDocument

    @property
    def folder(self) -> str:
        """Its folder below the run."""
        return f"jobs/{self.task.name}-{self.number}"

    def start_replica(self, rank: int) -> None:
        """Only the scheduler starts replicas."""
        raise AssertionError(f"a leader respawned replica {rank} of {self.folder} at a site")

    def scheduler_for(self, node: Node, incarnation: Incarnation) -> JobScheduler:
        """The shipped scheduler shell, over the virtual command line as one node reaches it."""
        link = self.slurm.links.get(int(incarnation.job_id))
        restart = str(link.restart) if link is not None else incarnation.name.rpartition(".")[2]
        environ = {"SLURM_JOB_ID": incarnation.job_id, "SLURM_RESTART_COUNT": restart, "PATH": "/usr/bin"}
        return SlurmScheduler(self.document, link=incarnation.link, environ=environ, runner=self.slurm.runner(node))


@dataclass(slots=True, kw_only=True, eq=False)
class SlurmLink:
    """One of the scheduler's jobs.

    Attributes:
        left: ranks of this start whose step has not ended.
        ended_at: when its state became final; negative: it has not.
        is_unheard: its state is final though a node of it could not be asked; what goes on there is a known gap.
        is_completing: it is over, and processes of it are still to be ended.
        num_forgotten: starts of it, or of an earlier job of its id, that the scheduler does not count.
        abandoned: ranks whose step has lost its daemon, so that nobody tells the scheduler of their end.
        by: user who cancelled it; negative: nobody did.
    """

    id: int
    job: SiteJob
    number: int
    submitted_at: float
    eligible_at: float
    exclude: frozenset[str] = frozenset()
    state: str = PENDING
    reason: str = "Priority"
    restart: int = 0
    start: int = 0
    nodes: tuple[Node, ...] = ()
    left: set[int] = field(default_factory=set)
    code: int = 0
    started_at: float = -1.0
    ended_at: float = -1.0
    is_completing: bool = False
    is_preempted: bool = False
    is_unheard: bool = False
    num_forgotten: int = 0
    abandoned: set[int] = field(default_factory=set)
    by: int = -1

    @property
    def name(self) -> str:
        """Singleton waits for others of the same name."""
        return self.job.document.queue.name

    @property
    def is_over(self) -> bool:
        """Whether its state is final."""
        return self.state not in (PENDING, RUNNING, "REQUEUED")

    @property
    def incarnation_name(self) -> str:
        """Name of the present start."""
        return f"{self.id}.{self.restart + self.num_forgotten}"

    @property
    def comment(self) -> str:
        """What the listing shows as its comment."""
        return comment_of(self.job.document.chain.mark, self.number)


def document_of(site: SitePlan, task: TaskPlan, number: int, token: str) -> JobDocument:
    """job.json of a job at a site."""
    mark = mark_of(token)
    argv = ("sbatch", "--parsable", f"--comment={comment_of(mark, '${link}')}", f"jobs/{task.name}-{number}", "${link}")
    num_links = site.num_links if site.mode == "successor" else 1
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
        site=SiteSettings(notice_s=site.notice_s, host_address="", fencing=site.fencing),
        chain=ChainConfig(
            scheduler="slurm",
            mode=site.mode,
            submit=argv,
            mark=mark,
            num_links=num_links,
            can_submit=site.can_submit,
        ),
        queue=QueueRequest(
            name=f"wl-sim-1-{task.name}-{number}",
            time_s=task.per_job_s or 0.0,
            num_links=num_links,
            num_queued=num_links if not site.can_submit else min(2, num_links),
            signal_before_s=site.signal_before_s,
        ),
    )
