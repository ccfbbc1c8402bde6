"""A virtual machine: its clocks, whether it is up, whether the others can reach it."""

from __future__ import annotations

from windlass.testing.simulation.world import World

__all__ = ["Node", "NodeClock"]

_WALL_START = 1_700_000_000.0


class NodeClock:
    """A node's clocks: wall time jumps, monotonic time does not."""

    def __init__(self, world: World, boot_s: float) -> None:
        self._world = world
        self._boot_s = boot_s
        self.offset_s = 0.0

    def now(self) -> float:
        """Wall time on this node."""
        return _WALL_START + self._world.now + self.offset_s

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

    @property
    def is_up(self) -> bool:
        """Whether it runs anything."""
        return self._world.now >= self.up_at

    @property
    def is_isolated(self) -> bool:
        """Whether other nodes cannot reach it now."""
        return self._world.now < self.isolated_until
