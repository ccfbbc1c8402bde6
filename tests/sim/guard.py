"""A virtual guard: a process that runs the shipped `Restarts` and `ForwardedSignals`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.cluster import Cluster
from tests.sim.disk import Crash, LockedError
from tests.sim.fencing_agent import VirtualFencingAgent
from tests.sim.node import Node
from tests.sim.process import VirtualProcess
from tests.sim.supervisor import VirtualSupervisor
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.fencing.guard import ForwardedSignals, Restarts
from windlass.supervise.gang.incarnation import LOCAL, Incarnation

if TYPE_CHECKING:
    from tests.sim.backend import VirtualJob
    from tests.sim.site.job import SiteJob

__all__ = ["VirtualGuard", "start_guard"]

_LOCK_WAIT_S = 5.0


class VirtualGuard:
    """The guard of one replica of one job.

    Args:
        on_end: told when neither guard nor supervisor lives any more, with the guard's exit code.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: VirtualJob | SiteJob,
        rank: int,
        node: Node,
        incarnation: Incarnation = LOCAL,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        self.cluster, self.job, self.rank, self.node, self.incarnation = cluster, job, rank, node, incarnation
        self.is_alive = True
        self.supervisor: VirtualSupervisor | None = None
        self.children: list[VirtualProcess] = []
        self.fencing_agent = VirtualFencingAgent(self) if job.document.site.fencing.renew_s else None
        self._on_end = on_end
        self.has_given_up = False
        self._restarts = Restarts()
        self._signals = ForwardedSignals(self._send)
        self._started_at = 0.0

    @property
    def holds_lock(self) -> bool:
        """The lock passes to the supervisor and ends with both."""
        return self.is_alive or (self.supervisor is not None and self.supervisor.is_alive)

    def on_supervisor_end(self, code: int | None) -> None:
        """The supervisor is gone; None: it crashed."""
        if code is not None:
            self.is_alive = False
        elif self.is_alive:
            self._restart()
        self._look_for_the_end(137 if code is None else code)

    def _restart(self) -> None:
        self._signals.forward_to(0)
        now = self.cluster.world.now
        pause_s = self._restarts.pause_s(ran_s=now - self._started_at, now=now, was_killed=True)
        if pause_s is None:
            self.has_given_up, self.is_alive = True, False
            for process in self.children:
                process.kill_tree()
        else:
            self.cluster.world.at(pause_s + self.cluster.world.uniform(0.01, 0.5), self.start)

    def kill(self) -> None:
        """SIGKILL to the guard alone; its supervisor goes on."""
        self.is_alive = False
        self._look_for_the_end(137)

    def kill_all(self) -> None:
        """SIGKILL to everything of this replica on its node, as a scheduler or the loss of power does it."""
        if self.fencing_agent is not None:
            self.fencing_agent.kill()
        for process in self.children:
            process.kill()
        self.is_alive = False
        if self.supervisor is not None:
            self.supervisor.kill()
        self._look_for_the_end(137)

    def signal(self, number: int) -> None:
        """A signal to guard and supervisor."""
        if self.is_alive:
            self._signals.receive(number)
        else:
            self._send(0, number)

    def _send(self, _pid: int, number: int) -> None:
        if self.supervisor is not None:
            self.supervisor.signal(number)

    def decision(self) -> FenceDecision:
        """What the fencing agent last said; that all is well where there is none."""
        return self.fencing_agent.decision if self.fencing_agent is not None else FenceDecision()

    def restart_fencing_agent(self) -> None:
        """The fencing agent was killed; the next goes on from its ruling."""
        if self.fencing_agent is None or not self.holds_lock:
            return
        self.fencing_agent.kill()
        self.fencing_agent = VirtualFencingAgent(self, self.fencing_agent.decision)
        self.cluster.world.at(self.cluster.world.uniform(0.01, 1.0), self.fencing_agent.start)

    def _look_for_the_end(self, code: int) -> None:
        if self.holds_lock:
            return
        if self.fencing_agent is not None and self.fencing_agent.is_alive:  # it ends what nobody watches any more
            self.fencing_agent.kill()
            for process in self.children:
                process.kill()
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(code)

    def begin(self) -> None:
        """The guard's first moment."""
        if self.fencing_agent is not None:
            self.fencing_agent.start()
        self.start()

    def start(self) -> None:
        """Fork the supervisor, unless it lives."""
        if not self.is_alive or (self.supervisor is not None and self.supervisor.is_alive):
            return
        self._started_at = self.cluster.world.now
        try:
            self.supervisor = VirtualSupervisor(self)
        except LockedError:
            self.cluster.world.at(_LOCK_WAIT_S, self.start)
            return
        try:
            self.supervisor.start()
        except Crash:
            self.supervisor.die()
            return
        self._signals.forward_to(1)


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
