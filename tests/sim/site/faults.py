"""What goes wrong at a virtual site, and when: nodes, network, shared file system, scheduler."""

from __future__ import annotations

from tests.sim.faults import Faults
from tests.sim.guard import VirtualGuard
from tests.sim.node import Node
from tests.sim.site.backend import SiteBackend
from tests.sim.site.job import PENDING, RUNNING, SlurmLink
from tests.sim.site.plan import SITE_CALM_AT_S
from tests.sim.site.slurm import VirtualSlurm

__all__ = ["SiteFaults"]

_AFTERWARDS_S = 200.0
"""What the scheduler gave up may live on for so long where it is cut off."""

_HANDOVER_S = 17.0
"""From a node that is given up to the next start that waits for it."""

_STALLS = ((1.0, 8.0), (5.0, 30.0), (30.0, 130.0))


class SiteFaults(Faults):
    """Carries out a plan at a site."""

    calm_at_s = SITE_CALM_AT_S

    @property
    def _slurm(self) -> VirtualSlurm:
        assert isinstance(self._backend, SiteBackend)
        return self._backend.slurm

    def _node(self, number: int) -> Node:
        """One of the nodes, and of those that work rather than of the others."""
        used = sorted({guard.node.number for guard in self._cluster.guards.values() if guard.holds_lock})
        nodes = [self._cluster.nodes[k] for k in used] or list(self._cluster.nodes)
        return nodes[number % len(nodes)]

    def _blame(self, node: Node | None, kind: str) -> None:
        """Tell the watch which starts of links are hit."""
        for link in self._slurm.links.values():
            is_recent = link.state == RUNNING or self._world.now < link.ended_at + _AFTERWARDS_S
            is_there = link.started_at >= 0 and is_recent
            if is_there and (node is None or node in link.nodes) and self._slurm.watch is not None:
                self._slurm.watch.on_fault(link, kind)

    def _guard(self, number: int) -> VirtualGuard | None:
        guard = super()._guard(number)
        if guard is not None:
            self._blame(guard.node, "other")
        return guard

    def _running(self, number: int) -> SlurmLink | None:
        links = [link for link in self._slurm.links.values() if link.state == RUNNING]
        return links[number % len(links)] if links else None

    # --- nodes, network, disk ----------------------------------------------------------------------------------------

    def _power_cut(self, number: int) -> None:
        node = self._node(number)
        node.up_at = self._until(5.0, 90.0)
        self._blame(node, "node-lost")
        self._slurm.lose(node)
        for guard in list(self._cluster.guards.values()):
            if guard.node is node and guard.holds_lock:
                guard.kill_all()
        self._world.at(node.up_at - self._world.now + 0.1, self._slurm.find, node)

    def _partition(self, number: int) -> None:
        """The scheduler and the others lose a node; its processes go on, with the shared file system or without."""
        node = self._node(number)
        self._blame(node, "node-lost")
        earliest_s, latest_s = self._takeover_s()
        returns_early = number % 3 != 1 and earliest_s < latest_s
        until = self._until(earliest_s, latest_s) if returns_early else self._until(10.0, 200.0)
        node.isolated_until, node.is_cut_from_scheduler = until, True
        self._cluster.network.isolate(node)
        if returns_early:
            node.stall(until - self._world.now - self._world.uniform(0.5, 3.0))
        elif self._world.chance(0.6):
            node.stall(until - self._world.now + self._world.uniform(-2.0, 6.0))
            self._cluster.monitor.on_fault(node.stalled_until)
        self._slurm.lose(node)
        self._world.at(until - self._world.now + self._world.uniform(0.01, 8.0), self._reconnect, node)

    def _takeover_s(self) -> tuple[float, float]:
        """Seconds after which another start works, while what it took over is stopped and not killed yet."""
        site = self._slurm.site
        return site.down_after_s + site.fencing.quiet_s + _HANDOVER_S, site.fencing.kill_s

    def _reconnect(self, node: Node) -> None:
        self._cluster.monitor.on_fault()
        if self._world.now < node.isolated_until:
            return
        node.is_cut_from_scheduler = False
        self._slurm.find(node)

    def _isolate(self, number: int) -> None:
        """The others cannot reach a node for a while; the scheduler can."""
        node = self._node(number)
        self._blame(node, "other")
        node.isolated_until = max(node.isolated_until, self._until(2.0, 40.0))
        self._cluster.network.isolate(node)

    def _lossy(self, number: int) -> None:
        self._blame(None, "other")
        super()._lossy(number)

    def _stall(self, number: int) -> None:
        node = self._node(number)
        self._blame(node, "other")
        node.stall(self._until(*_STALLS[number % 3]) - self._world.now)

    def _stall_all(self, number: int) -> None:
        self._blame(None, "other")
        until = self._until(*_STALLS[number % 3])
        for node in self._cluster.nodes:
            node.stall(until - self._world.now + self._world.uniform(0.0, 1.0))

    # --- the scheduler -----------------------------------------------------------------------------------------------

    def _preempt(self, number: int) -> None:
        link = self._running(number)
        if link is not None and not self._slurm.is_away:
            self._cluster.monitor.on_fault(self._world.now + self._slurm.site.notice_s + 15.0)
            if self._slurm.watch is not None:
                self._slurm.watch.on_fault(link, "preempted")
            self._slurm.preempt(link)

    def _requeue(self, number: int) -> None:  # type: ignore[override]
        """The site puts a job back into the queue, whatever it was asked for."""
        link = self._running(number)
        if link is not None and not self._slurm.is_away:
            if self._slurm.watch is not None:
                self._slurm.watch.on_fault(link, "requeue")
            self._slurm.requeue(link)

    def _scancel(self, number: int) -> None:
        """Somebody cancels one link from outside, or all of a job."""
        links = [link for link in self._slurm.links.values() if not link.is_over]
        if not links or self._slurm.is_away:
            return
        chosen = links[number % len(links)]
        wanted = [link for link in links if link is chosen or (number % 2 and link.job is chosen.job)]
        for link in sorted(wanted, key=lambda link: link.state != PENDING):
            if self._slurm.watch is not None:
                self._slurm.watch.on_cancelled(link)
            self._slurm.terminate(link, "CANCELLED", "None")

    def _amnesia(self, number: int) -> None:
        """The controller dies and comes back with the state of some seconds ago."""
        if any(node.is_cut_from_scheduler for node in self._cluster.nodes) or self._slurm.is_away:
            return
        self._controller_away(number)
        self._blame(None, "other")
        seconds = (1.0, 5.0, 15.0)[number % 3]
        self._world.at(self._slurm.away_until - self._world.now - 0.01, self._slurm.forget, seconds)

    def _deaf(self, number: int) -> None:
        """The controller forgets for a while that it was told to cancel what waits."""
        self._slurm.deaf_until = self._until(20.0, 90.0)

    def _orphan(self, number: int) -> None:
        """The controller forgets a job that runs, and all links behind it; what runs is ended a good while later."""
        link = self._running(number)
        if link is not None and not self._slurm.is_away and not any(n.is_cut_from_scheduler for n in link.nodes):
            self._blame(None, "other")
            self._slurm.orphan(link, self._until(10.0, 90.0))

    def _controller_away(self, number: int) -> None:
        self._slurm.away_until = self._until(*((2.0, 10.0), (30.0, 90.0))[number // 3 % 2])

    # --- processes ---------------------------------------------------------------------------------------------------

    def _kill_guard(self, number: int) -> None:
        """What is left on the node when its task has ended is ended by the scheduler's daemon there."""
        guard = self._guard(number)
        if guard is not None:
            guard.kill()
            self._cluster.monitor.on_fault(self._world.now + 2.0)
            self._world.at(self._world.uniform(0.0, 2.0), guard.kill_all)

    def _kill_fencing_agent(self, number: int) -> None:
        guard = self._guard(number)
        if guard is not None:
            guard.restart_fencing_agent()

    def _kill_srun(self, number: int) -> None:
        """What starts the steps of a job dies: its batch script has ended, and so has the job."""
        link = self._running(number)
        if link is not None and not self._slurm.is_away:
            if self._slurm.watch is not None:
                self._slurm.watch.on_fault(link, "srun")
            self._slurm.terminate(link, "FAILED", "JobLaunchFailure")

    def _kill_step_daemon(self, number: int) -> None:
        """Nobody tells the scheduler any more that a replica has ended."""
        link = self._running(number)
        if link is not None and link.left:
            ranks = sorted(link.left)
            link.abandoned.add(ranks[number // 7 % len(ranks)])

    def _kill_process(self, number: int) -> None:
        self._blame(None, "other")
        super()._kill_process(number)
