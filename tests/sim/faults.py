"""What goes wrong, and when: the events of a fault plan, carried out."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.sim.backend import VirtualBackend, VirtualJob
from tests.sim.client import Clients
from tests.sim.cluster import Cluster
from tests.sim.disk import Fate
from tests.sim.guard import VirtualGuard
from tests.sim.invariants import Monitor
from tests.sim.scenario import CALM_AT_S, FaultPlan
from tests.sim.site.backend import SiteBackend
from tests.sim.site.job import SiteJob

__all__ = ["Faults", "fate_of"]


def fate_of(plan: FaultPlan, monitor: Monitor) -> Callable[[int, str, str], Fate]:
    """The fate of each append under a plan."""

    def fate(number: int, writer: str, kind: str) -> Fate:
        found = plan.appends.get(number, Fate.WRITTEN)
        if found is not Fate.WRITTEN:
            monitor.on_fault()
            if monitor.chains is not None:
                monitor.chains.on_fault_everywhere()
        return found

    return fate


class Faults:
    """Carries a plan out."""

    calm_at_s = CALM_AT_S

    def __init__(self, cluster: Cluster, backend: VirtualBackend | SiteBackend, clients: Clients) -> None:
        self._cluster, self._world, self._backend, self._clients = cluster, cluster.world, backend, clients

    def schedule(self, plan: FaultPlan) -> None:
        """Let everything in the plan happen at its time."""
        for time, what, number in plan.events:
            self._world.at(time, self._happen, what, number)

    def _happen(self, what: str, number: int) -> None:
        self._world.log("fault: %s", what)
        self._cluster.monitor.on_fault()
        getattr(self, "_" + what.replace("-", "_"))(number)

    def _until(self, low: float, high: float) -> float:
        """A later time, calm time at the latest, that is announced to the monitor."""
        until = min(self.calm_at_s, self._world.now + self._world.uniform(low, high))
        self._cluster.monitor.on_fault(until)
        return until

    def _guard(self, number: int) -> VirtualGuard | None:
        present = [guard for guard in self._cluster.guards.values() if guard.holds_lock]
        return present[number % len(present)] if present else None

    def _kill_supervisor(self, number: int) -> None:
        guard = self._guard(number)
        if guard is not None and guard.supervisor is not None:
            guard.supervisor.kill()

    def _kill_guard(self, number: int) -> None:
        guard = self._guard(number)
        if guard is not None:
            guard.kill()

    def _kill_both(self, number: int) -> None:
        guard = self._guard(number)
        if guard is not None:
            guard.kill()
            if guard.supervisor is not None:
                guard.supervisor.kill()
            self._requeue(guard.job)

    def _requeue(self, job: VirtualJob | SiteJob) -> None:
        """Some schedulers start a job again that lost a node."""
        if isinstance(job, VirtualJob) and self._world.chance(0.4):
            self._world.at(self._world.uniform(2.0, 40.0), self._resurrect_when_gone, job)

    def _kill_node(self, number: int) -> None:
        node = self._cluster.nodes[number % len(self._cluster.nodes)]
        node.up_at = self._until(1.0, 40.0)
        for guard in list(self._cluster.guards.values()):
            if guard.node is node:
                guard.kill()
                if guard.supervisor is not None:
                    guard.supervisor.kill()
                self._requeue(guard.job)
        for process in self._cluster.processes.living():
            if process.node is node:
                process.kill()

    def _kill_process(self, number: int) -> None:
        living = self._cluster.processes.living()
        if living:
            living[number % len(living)].kill()

    def _isolate(self, number: int) -> None:
        node = self._cluster.nodes[number % len(self._cluster.nodes)]
        node.isolated_until = self._until(*self._world.random.choice(((2.0, 12.0), (15.5, 20.0), (20.0, 60.0))))
        self._cluster.network.isolate(node)

    def _unplug(self, number: int) -> None:
        self._cluster.nodes[number % len(self._cluster.nodes)].isolated_until = self._until(2.0, 45.0)

    def _lossy(self, number: int) -> None:
        self._cluster.network.lossy_until = self._until(5.0, 45.0)

    def _clock(self, number: int) -> None:
        node = self._cluster.nodes[number % len(self._cluster.nodes)]
        node.clock.offset_s += self._world.uniform(600.0, 20000.0) * self._world.random.choice((-1, 1))
        self._cluster.monitor.has_clock_jump = True

    def _notice(self, number: int) -> None:
        guard = self._guard(number)
        if guard is not None and guard.supervisor is not None:
            guard.supervisor.signal(signal.SIGTERM)

    def _hide(self, number: int) -> None:
        """Observations see nothing for a while, and somebody looks."""
        self._backend.hidden_until = self._until(5.0, 60.0)
        self._world.at(self._world.uniform(0.1, 5.0), self._clients.keep)

    def _resurrect(self, number: int) -> None:
        assert isinstance(self._backend, VirtualBackend)
        jobs = self._backend.jobs
        if jobs:
            self._resurrect_when_gone(jobs[number % len(jobs)])

    def _resurrect_when_gone(self, job: VirtualJob) -> None:
        if self._world.now > CALM_AT_S:
            return
        if not job.has_started or job.is_alive:
            self._world.at(self._world.uniform(1.0, 10.0), self._resurrect_when_gone, job)
            return
        self._world.log("fault: the scheduler starts %s again", job.folder)
        self._cluster.monitor.on_fault()
        job.start()

    def _kill_client(self, number: int) -> None:
        self._clients.kill()
