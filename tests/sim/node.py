"""A virtual machine: its clocks, whether it is up, whether the others can reach it."""

from __future__ import annotations

from tests.sim.world import World

__all__ = ["WALL_START", "Node", "NodeClock"]

WALL_START = 1_700_000_000.0
"""Wall time when a history begins."""


class NodeClock:
    """A node's clocks: wall time jumps, monotonic time does not."""

    def __init__(self, world: World, boot_s: float) -> None:
        self._world = world
        self._boot_s = boot_s
        self.offset_s = 0.0

    def now(self) -> float:
        """Wall time on this node."""
        return WALL_START + self._world.now + self.offset_s

    def monotonic(self) -> float:
        """Seconds since this node was booted."""
        return self._boot_s + self._world.now

    def sleep(self, seconds: float) -> None:
        """Nobody sleeps in a simulation."""
        raise AssertionError(f"a core slept for {seconds} s")


class Node:
    """A machine.

    Attributes:
        isolated_until: other nodes cannot reach it before this time.
        keeps_connections: while isolated, messages wait (a cable is out) instead of connections breaking.
        stalled_until: whatever touches the shared file system from here hangs until this time.
        hangs_until: so long hangs a supervisor that touched it meanwhile.
        is_cut_from_scheduler: the scheduler cannot reach it.
        is_down: the scheduler has given it up.
    """

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.0.0.{number + 1}"
        self.clock = NodeClock(world, 1000.0 * (number + 1))
        self.up_at = 0.0
        self.isolated_until = 0.0
        self.keeps_connections = False
        self.stalled_until = self.hangs_until = 0.0
        self.is_cut_from_scheduler = False
        self.is_down = False

    @property
    def is_up(self) -> bool:
        """Whether it runs anything."""
        return self._world.now >= self.up_at

    @property
    def is_stalled(self) -> bool:
        """Whether the shared file system hangs here now."""
        return self._world.now < self.stalled_until

    def stall(self, seconds: float) -> None:
        """Let the shared file system hang from now on; a request that hangs may be answered later than a new one."""
        until = self._world.now + seconds
        if until > self.stalled_until:
            self.stalled_until = until
            self.hangs_until = until + (self._world.uniform(0.5, 6.0) if self._world.chance(0.4) else 0.0)

    @property
    def is_isolated(self) -> bool:
        """Whether other nodes cannot reach it now."""
        return self._world.now < self.isolated_until
