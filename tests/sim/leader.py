"""A virtual leader: the shell of `supervise.leader` in virtual time, around the shipped `GangCore` and `StartGate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.network import Connection
from tests.sim.site.job import SiteJob
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.gang import core
from windlass.supervise.gang.election import Leadership
from windlass.supervise.gang.gate import StartGate
from windlass.supervise.gang.messages import Order, ReplicaStatus

if TYPE_CHECKING:
    from tests.sim.supervisor import VirtualSupervisor

__all__ = ["VirtualLeader"]


class VirtualLeader:
    """Leads one task from one of its supervisors."""

    def __init__(self, supervisor: VirtualSupervisor, epoch: int) -> None:
        self.epoch = epoch
        self._supervisor = supervisor
        self._cluster, self._clock, self._journal = supervisor.cluster, supervisor.clock, supervisor.journal
        self._connections: list[Connection] = []
        job = supervisor.job
        self._gate = StartGate(job.document, Path(job.folder), "")
        self._links = _links(supervisor)
        task = job.task
        self.core = core.GangCore(
            core.GangConfig(
                job=job.number,
                num_replicas=task.num_replicas,
                budgets=task.budgets,
                ready_timeout_s=task.ready_timeout_s,
                grace_s=task.grace_s,
                per_job_s=task.per_job_s,
                time_s=task.time_s,
                can_respawn=task.num_replicas > 1 and self._links is None,
                **self._links.of_gang() if self._links is not None else {},
            ),
            epoch=epoch,
            journal=self._journal,
            now=self._clock.monotonic(),
            wall=self._clock.now(),
        )

    @property
    def wants_quick_tick(self) -> bool:
        """Whether something is about to be decided within a second."""
        return self.core.is_settling or self.core.order.level > 0

    def claim(self) -> bool:
        """Make this leader known; False when another replica was quicker."""
        supervisor = self._supervisor
        if supervisor.job.task.num_replicas == 1 and self._links is None:
            return True
        node, name = supervisor.node, supervisor.incarnation.name
        claim = Leadership(self.epoch, supervisor.rank, node.name, node.address, 29400, "", name)
        return self._cluster.publish_claim(supervisor.job.folder, claim)

    def start(self) -> None:
        """Begin to lead."""
        self._supervisor.run(self.core.start(self._clock.monotonic()))
        self.tick()

    def on_status(self, status: ReplicaStatus) -> None:
        """A replica's state."""
        if status.notice and self._links is not None:
            status = self._links.explain(status, self._clock.monotonic())
        self._supervisor.run(self.core.on_status(status, self._clock.monotonic()))

    def on_superseded(self) -> None:
        """The scheduler started the job anew."""
        self._supervisor.run(self.core.on_superseded(self._clock.monotonic()))

    def on_lost(self, connection: Connection) -> None:
        """A connection broke; a rank that has a newer one is not lost."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        if all(other.rank != connection.rank for other in self._connections):
            self._supervisor.run(self.core.on_disconnected(connection.rank, self._clock.monotonic()))

    def admit(self, connection: Connection) -> None:
        """A replica connected: it gets the newest order."""
        self._connections.append(connection)
        self._cluster.network.send_order(connection, self.core.order, self._supervisor.lag_s)

    def tick(self) -> None:
        """Look at the gate, the journal and the deadlines."""
        now = self._clock.monotonic()
        if self.core.is_waiting:
            self._look_at_gate(now)
        elif not self.core.is_over:
            self._look_for_the_gone(now)
            self.send(self.core.order)
        if self._links is not None and not self.core.is_over:
            self._links.tick(now)
        self._supervisor.run(self.core.on_tick(now))

    def _look_for_the_gone(self, now: float) -> None:
        for rank in self.core.membership.absent:
            if self._cluster.is_gone(self._supervisor.job.folder, rank):
                self.core.membership.on_gone(rank, now)

    def _look_at_gate(self, now: float) -> None:
        self._journal.poll()
        if self.core.open_attempt and self._links is not None:
            gone = self._links.check_open_attempt(self.core.open_attempt, now)
            if gone is not None:
                self._supervisor.run(self.core.on_open_attempt_over(*gone, now))
            return
        failed = self._gate.failed_upstream(self._journal.facts)
        if failed:
            self._supervisor.run(self.core.on_upstream_failed(failed, now))
            return
        reason = self._gate.reason(self._journal.facts)
        if not reason and self._links is not None:
            self._links.queue_next(now)
        self._supervisor.run(self.core.on_gate(reason, now))

    def send(self, order: Order) -> Order:
        """Give the order to every other replica; returns it as sent."""
        for connection in self._connections:
            self._cluster.network.send_order(connection, order, self._supervisor.lag_s)
        return order

    def release(self) -> None:
        """The task ended."""
        if self._links is not None:
            self._links.cancel_rest()

    def hand_over(self) -> None:
        """The next link goes on with the task."""
        if self._links is not None:
            self._links.leave()

    def respawn(self, rank: int) -> None:
        """Start a replica that is not there."""
        supervisor = self._supervisor
        supervisor.job.start_replica(rank)


def _links(supervisor: VirtualSupervisor) -> LinkManager | None:
    """The shipped `LinkManager` over the virtual scheduler; None for a job that is no link."""
    incarnation, job = supervisor.incarnation, supervisor.job
    if not isinstance(job, SiteJob):
        return None
    return LinkManager(
        job.document,
        Path(job.folder),
        incarnation,
        supervisor.journal,  # type: ignore[arg-type]  # a journal view like the shipped one, over the virtual disk
        scheduler=job.scheduler_for(supervisor.node, incarnation),
        read=supervisor.cluster.read_heartbeats,
    )
