"""What all parts of a simulated place share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass.supervise.election import Leadership
from windlass.testing.simulation.disk import Disk
from windlass.testing.simulation.invariants import Monitor
from windlass.testing.simulation.network import Network
from windlass.testing.simulation.node import Node
from windlass.testing.simulation.process import ProcessTable
from windlass.testing.simulation.world import World

if TYPE_CHECKING:
    from windlass.testing.simulation.guard import VirtualGuard

__all__ = ["Cluster"]


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Nodes, disk, network, processes, and the files of jobs that are no journals.

    Attributes:
        claims: leadership files by job folder.
        guards: the guard that holds the lock for life of a job's replica, by (job folder, rank).
    """

    world: World
    nodes: tuple[Node, ...]
    disk: Disk
    network: Network
    processes: ProcessTable
    monitor: Monitor
    claims: dict[str, list[Leadership]] = field(default_factory=dict)
    guards: dict[tuple[str, int], VirtualGuard] = field(default_factory=dict)

    def is_gone(self, folder: str, rank: int) -> bool:
        """As `guard.is_gone`: both its guard and its supervisor are dead, on the one machine there is."""
        guard = self.guards.get((folder, rank))
        return len(self.nodes) == 1 and guard is not None and not guard.holds_lock

    def newest_claim(self, folder: str) -> Leadership | None:
        """As `election.newest_claim`."""
        return max(self.claims.get(folder, []), key=lambda claim: claim.epoch, default=None)

    def publish_claim(self, folder: str, claim: Leadership) -> bool:
        """As `election.publish_claim`."""
        claims = self.claims.setdefault(folder, [])
        if any(other.epoch == claim.epoch for other in claims):
            return False
        claims.append(claim)
        return True
