"""A virtual process that runs the shipped `Supervisor`: what blocks it, what crashes it, when it ticks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.disk import Crash, VirtualWriter
from tests.sim.network import Connection
from tests.sim.ports import VirtualLeaderEnd, VirtualProcesses, VirtualReplicaEnd, ports_of
from windlass.supervise.gang.messages import Order, Phase, ReplicaStatus, Step
from windlass.supervise.replica.supervisor import Supervisor

if TYPE_CHECKING:
    from tests.sim.guard import VirtualGuard

__all__ = ["VirtualSupervisor"]

_LINGER_S = 0.05
_LEADING = (Step.WAIT, Step.GATHER, Step.RUN)
_MAX_LATE = 3
"""Ticks: a leader looks at the claims in each, but one that begins with a hang in the file system is counted too."""

_SHORTEST_S, _TICK_S, _JOIN_TICK_S = 0.05, 0.1, 0.25
"""Ticks more often than that decide nothing else, and take long to simulate."""


class _WatchedSupervisor(Supervisor):
    """The shipped supervisor, seen by the monitor."""

    virtual: VirtualSupervisor

    def _send_status(self, status: ReplicaStatus) -> None:
        if status.phase is Phase.READY:
            self.virtual.cluster.monitor.on_ready(self.virtual.job, status.attempt, self.virtual.rank)
        super()._send_status(status)


class VirtualSupervisor:
    """One incarnation of the supervisor of one replica.

    Attributes:
        processes, replica_end, leader_end, writer: what its ports gave it.

    Raises:
        LockedError: another incarnation or job still writes this replica's journal.
    """

    processes: VirtualProcesses
    replica_end: VirtualReplicaEnd
    writer: VirtualWriter

    def __init__(self, guard: VirtualGuard) -> None:
        self.guard, self.job, self.rank, self.node = guard, guard.job, guard.rank, guard.node
        self.incarnation = guard.incarnation
        self.cluster, self.world, self.clock = guard.cluster, guard.cluster.world, guard.node.clock
        self.is_alive = True
        self.leader_end: VirtualLeaderEnd | None = None
        self._busy_until = 0.0
        self._num_late = 0
        folder = Path(self.job.folder)
        self._shipped = _WatchedSupervisor(
            self.job.document, folder, self.rank, ports_of(self), incarnation=self.incarnation
        )
        self._shipped.virtual = self

    def start(self) -> None:
        """Restore, then tick until it leaves or is killed."""
        self.world.log("%s.%d: supervisor of job %d starts", self.job.task.name, self.rank, self.job.number)
        self._shipped.begin()
        self._loop()

    def enter(self, action: Callable[..., object], *args: object) -> None:
        """Let the supervisor handle one event, after whatever still blocks it."""
        if not self.is_alive:
            return
        if self.node.is_stalled:  # it hangs in the first look at the journal
            self._busy_until = max(self._busy_until, self.node.hangs_until)
        if self.world.now < self._busy_until:
            self.world.at(self._busy_until - self.world.now, self.enter, action, *args)
            return
        if self._shipped.exit_code is not None:
            return  # it is about to leave
        try:
            action(*args)
        except Crash:
            self.die()
            return
        self._after_event()

    def die(self, code: int | None = None) -> None:
        """Its end, by its own will (a code) or not."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.log(
            "%s.%d: supervisor %s", self.job.task.name, self.rank, "crashes" if code is None else f"leaves with {code}"
        )
        self.writer.close()
        self.cluster.network.stop_listening(self)
        if code is None:
            self.cluster.network.close(self)
        else:  # what it said last is still delivered
            self.world.at(_LINGER_S, self.cluster.network.close, self)
        if self.processes.gated is not None:
            self.processes.gated.kill()
        self.guard.on_supervisor_end(code)

    def kill(self) -> None:
        """SIGKILL."""
        self.die()

    def signal(self, number: int) -> None:
        """A signal for its loop."""
        self.enter(self._shipped.on_signal, number)

    @property
    def lag_s(self) -> float:
        """How long it still hangs in a write, before anything that follows is done."""
        return self.writer.delay_s if self.writer.is_hanging else 0.0

    def _loop(self) -> None:
        if not self.is_alive:
            return
        self.enter(self._shipped.tick)
        if self.is_alive:
            self._watch_leader()
            self.world.at(max(self._timeout_s(), self._busy_until - self.world.now), self._loop)

    def _watch_leader(self) -> None:
        """Count the ticks for which it leads although another one has taken over."""
        leader = self._shipped._leader
        leads = leader is not None and not leader.core.is_over and leader.core.order.step in _LEADING
        by = self._taken_over_by(leader.epoch) if leader is not None and leads else ""
        self._num_late = self._num_late + 1 if by else 0
        if self._num_late > _MAX_LATE and leader is not None:
            self.cluster.monitor.on_late_leader(self, leader.epoch, by)

    def _taken_over_by(self, epoch: int) -> str:
        newest = self.cluster.monitor.facts.task(self.job.task.name).newest_job
        if newest > self.job.number:
            return f"job {newest}"
        return self.cluster.taken_over_by(self.job.folder, epoch)

    def _timeout_s(self) -> float:
        wait_s = self._shipped.timeout_s
        return max(_TICK_S, wait_s) if wait_s >= _SHORTEST_S else _JOIN_TICK_S

    def _after_event(self) -> None:
        """What costs time and what ends, once an event is handled."""
        is_hanging = bool(self.lag_s)
        delay_s, self.writer.delay_s = self.writer.delay_s, 0.0
        if delay_s:
            self.world.log("%s.%d: the disk takes %.1f s", self.job.task.name, self.rank, delay_s)
            self._busy_until = self.world.now + delay_s
        self.cluster.monitor.on_order(self, self._shipped._core.order)
        code = self._shipped.exit_code
        if code is None:
            return
        if not is_hanging:
            self.cluster.monitor.on_leave(self, code)
        if delay_s:
            self.world.at(delay_s, self.die, code)
        else:
            self.die(code)

    # --- the network -------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> None:
        """A replica connected."""
        assert self.leader_end is not None
        self.leader_end.admit(connection)

    def receive_order(self, connection: Connection, order: Order) -> None:
        """An order from the network."""
        leader = connection.leader
        assert isinstance(leader, VirtualSupervisor)
        if leader.incarnation.name != self.incarnation.name:
            self.cluster.monitor.on_foreign_leader(self, leader)
        self.enter(self.replica_end.on_order, order)

    def receive_status(self, connection: Connection, status: ReplicaStatus) -> None:
        """A status from the network; without a leader here it is lost."""
        if self.cluster.network.listens(self) and self.leader_end is not None:
            self.enter(self._on_status, self.leader_end, status)

    def lose_connection(self, connection: Connection) -> None:
        """The other end of a connection is gone."""
        if connection is self.replica_end.connection:
            self.replica_end.connection = None
        elif connection.leader is self and self.leader_end is not None:
            self.enter(self.leader_end.lose, connection)

    def _on_status(self, end: VirtualLeaderEnd, status: ReplicaStatus) -> None:
        if end is self.leader_end and self.cluster.network.listens(self):
            end.on_status(status)
