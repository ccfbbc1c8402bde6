"""Virtual fencing agent and heartbeat process: `fencing.agent` in virtual time, around `FencingAgentCore`.

It is a process of its own: it goes on while its supervisor hangs in the file system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.supervise.fencing.fence import Action, FenceDecision, FencingAgentCore

if TYPE_CHECKING:
    from tests.sim.guard import VirtualGuard
    from tests.sim.process import VirtualProcess

__all__ = ["VirtualFencingAgent"]


class VirtualFencingAgent:
    """Stops, continues and kills the user's processes of one replica of one start of a job."""

    def __init__(self, guard: VirtualGuard, decision: FenceDecision | None = None) -> None:
        self._guard, self._world, self._clock = guard, guard.cluster.world, guard.node.clock
        self._fencing = guard.job.document.fencing
        self.is_alive = True
        now = self._clock.monotonic()
        self._core = FencingAgentCore(self._fencing, decision or FenceDecision(renewed_at=now))
        self._beat_at = self._world.now
        self._turn_began = -1.0
        self._is_written = False

    @property
    def decision(self) -> FenceDecision:
        """What stands in the page of memory that guard, supervisor and fencing agent share."""
        return self._core.decision

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
        self._act(self._core.tick(now))
        at = self._guard.node.stalled_until if self._turn_began >= 0 else self._beat_at
        due_s = min(at - self._world.now, self._core.next_at(now) - now)
        self._world.at(max(0.01, due_s + 0.001), self._loop)

    # --- the heartbeat process --------------------------------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        """Begin a turn when one is due, and end it unless the file system hangs."""
        if self._turn_began < 0 and self._world.now >= self._beat_at:
            self._turn_began = now
            self._is_written = not self._guard.node.is_stalled or self._world.chance(0.5)
            if self._is_written:
                self._write()
        if self._turn_began < 0 or self._guard.node.is_stalled:
            return
        if not self._is_written:
            self._write()
        began, self._turn_began = self._turn_began, -1.0
        self._beat_at = max(self._world.now, self._world.now + self._fencing.renew_s - (now - began))
        guard = self._guard
        is_superseded = guard.cluster.read_claims(guard.job.folder, guard.incarnation.name).is_superseded
        self._act(self._core.superseded(now) if is_superseded else self._core.beat(began, now))

    def _write(self) -> None:
        guard = self._guard
        guard.cluster.beat(guard.job.folder, guard.incarnation.name, guard.rank)

    # --- the ranks ---------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            processes = self._user_processes()
            if action is Action.KILL and processes:
                self._core.killed(self._clock.monotonic())
            for process in processes:
                if action is Action.STOP:
                    process.stop()
                elif action is Action.CONTINUE:
                    process.let_go()
                else:
                    process.kill()

    def _user_processes(self) -> list[VirtualProcess]:
        return [process for process in self._guard.children if process.is_alive]
