"""Virtual fencing agent and heartbeat process: they run the shipped `Fencer` and `Heartbeat` in virtual time.

They are processes of their own, which continue while their supervisor hangs in the file system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.supervise.fencing.agent import Fencer
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.fencing.heartbeat import Heartbeat

if TYPE_CHECKING:
    from tests.sim.guard import VirtualGuard
    from tests.sim.process import VirtualProcess

__all__ = ["VirtualFencingAgent"]


class _FencedProcesses:
    """The user's processes of a virtual guard; see `agent.FencedProcesses`."""

    def __init__(self, guard: VirtualGuard) -> None:
        self._guard = guard

    def _living(self) -> list[VirtualProcess]:
        return [process for process in self._guard.children if process.is_alive]

    def exist(self) -> bool:
        """Whether any lives."""
        return bool(self._living())

    def stop(self) -> None:
        """SIGSTOP."""
        for process in self._living():
            process.stop()

    def resume(self) -> None:
        """SIGCONT."""
        for process in self._living():
            process.let_go()

    def kill(self) -> None:
        """SIGKILL."""
        for process in self._living():
            process.kill()


class _HeartbeatDisk:
    """The shared file system for one heartbeat; see `heartbeat.HeartbeatDisk`.

    Attributes:
        has_landed: the write of this turn reached the server before the file system stalled.
    """

    def __init__(self, guard: VirtualGuard) -> None:
        self._guard = guard
        self.has_landed = False

    def write(self) -> bool:
        """Once a turn."""
        if not self.has_landed:
            self._guard.cluster.beat(self._guard.job.folder, self._guard.incarnation.name, self._guard.rank)
        self.has_landed = False
        return True

    def land(self) -> None:
        """Let the write reach the server now, and its answer come later."""
        self.write()
        self.has_landed = True

    def refresh(self) -> None:
        """Listings are never old here."""

    def is_superseded(self) -> bool:
        """By the claims that all see."""
        guard = self._guard
        return guard.cluster.read_claims(guard.job.folder, guard.incarnation.name).is_superseded


class VirtualFencingAgent:
    """Both processes of one replica of one start of a job.

    Attributes:
        decision: what guard, supervisor and fencing agent share.
    """

    def __init__(self, guard: VirtualGuard, decision: FenceDecision | None = None) -> None:
        self._guard, self._world, self._clock = guard, guard.cluster.world, guard.node.clock
        self._renew_s = guard.job.document.site.fencing.renew_s
        self.is_alive = True
        self.decision = decision or FenceDecision()
        self._fencer = Fencer(
            guard.job.document.site.fencing,
            self.decision,
            _FencedProcesses(guard),
            self._publish,
            self._clock.monotonic,
        )
        self._disk = _HeartbeatDisk(guard)
        self._heartbeat = Heartbeat(self._disk, self._renew_s, self._fencer.on_heartbeat)
        self._beat_at = self._world.now
        self._turn_began = -1.0

    def _publish(self, decision: FenceDecision) -> None:
        self.decision = decision

    def start(self) -> None:
        """Watch, until killed or not needed."""
        self._loop()

    def kill(self) -> None:
        """SIGKILL, or the end of the replica; the heartbeat process dies with it."""
        self.is_alive = False

    def _loop(self) -> None:
        if not self.is_alive:
            return
        now = self._clock.monotonic()
        self._beat(now)
        due_at = self._fencer.tick()
        at = self._guard.node.stalled_until if self._turn_began >= 0 else self._beat_at
        self._world.at(max(0.01, min(at - self._world.now, due_at - now) + 0.001), self._loop)

    def _beat(self, now: float) -> None:
        """Begin a turn when one is due, and end it unless the file system hangs."""
        is_stalled = self._guard.node.is_stalled
        if self._turn_began < 0 and self._world.now >= self._beat_at:
            self._turn_began = now
            if is_stalled and self._world.chance(0.5):
                self._disk.land()
        if self._turn_began < 0 or is_stalled:
            return
        began, self._turn_began = self._turn_began, -1.0
        self._beat_at = max(self._world.now, self._world.now + self._renew_s - (now - began))
        self._heartbeat.turn(began)
