"""A virtual guard: holds the replica's lock, starts its supervisor and starts it again; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.testing.simulation.cluster import Cluster
from windlass.testing.simulation.disk import Crash, LockedError
from windlass.testing.simulation.node import Node
from windlass.testing.simulation.process import VirtualProcess
from windlass.testing.simulation.supervisor import VirtualSupervisor

if TYPE_CHECKING:
    from windlass.testing.simulation.backend import VirtualJob

__all__ = ["VirtualGuard", "start_guard"]

_LOCK_WAIT_S = 5.0


class VirtualGuard:
    """The guard of one replica of one job."""

    def __init__(self, cluster: Cluster, job: VirtualJob, rank: int, node: Node) -> None:
        self.cluster, self.job, self.rank, self.node = cluster, job, rank, node
        self.is_alive = True
        self.supervisor: VirtualSupervisor | None = None
        self.children: list[VirtualProcess] = []

    @property
    def holds_lock(self) -> bool:
        """The lock passes to the supervisor and ends with both."""
        return self.is_alive or (self.supervisor is not None and self.supervisor.is_alive)

    def on_supervisor_end(self, code: int | None) -> None:
        """The supervisor is gone; None: it crashed."""
        if code is not None:
            self.is_alive = False
        elif self.is_alive:
            self.cluster.world.at(self.cluster.world.uniform(0.01, 1.0), self.start)

    def kill(self) -> None:
        """SIGKILL to the guard alone; its supervisor goes on."""
        self.is_alive = False

    def start(self) -> None:
        """Fork the supervisor, unless it lives."""
        if not self.is_alive or (self.supervisor is not None and self.supervisor.is_alive):
            return
        try:
            self.supervisor = VirtualSupervisor(self)
        except LockedError:
            self.cluster.world.at(_LOCK_WAIT_S, self.start)
            return
        try:
            self.supervisor.start()
        except Crash:
            self.supervisor.die()


def start_guard(cluster: Cluster, job: VirtualJob, rank: int) -> None:
    """Start a replica on its node, unless it is there already or the node is down."""
    key = (job.folder, rank)
    present = cluster.guards.get(key)
    node = cluster.nodes[rank % len(cluster.nodes)]
    if (present is not None and present.holds_lock) or not node.is_up:
        return
    cluster.world.log("%s: guard of rank %d starts on %s", job.folder, rank, node.name)
    guard = cluster.guards[key] = VirtualGuard(cluster, job, rank, node)
    guard.start()
