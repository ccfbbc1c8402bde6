"""What all parts of a simulated place share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.disk import Disk
from tests.sim.invariants import Monitor
from tests.sim.network import Network
from tests.sim.node import Node
from tests.sim.process import ProcessTable
from tests.sim.world import World
from windlass.core.dataclass import dataclass
from windlass.supervise.fencing.fence import heartbeat_path
from windlass.supervise.gang.election import Claims, Leadership

if TYPE_CHECKING:
    from tests.sim.guard import VirtualGuard

__all__ = ["Cluster"]


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Nodes, disk, network, processes, and the files of jobs that are no journals.

    Attributes:
        claims: leadership files by job folder.
        guards: the guard that holds the lock for life of a job's replica, by (folder of the start of the job, rank).
        heartbeats: contents of heartbeat files, by job folder and path.
    """

    world: World
    nodes: tuple[Node, ...]
    disk: Disk
    network: Network
    processes: ProcessTable
    monitor: Monitor
    claims: dict[str, list[Leadership]] = field(default_factory=dict)
    guards: dict[tuple[str, int], VirtualGuard] = field(default_factory=dict)
    heartbeats: dict[str, dict[str, bytes]] = field(default_factory=dict)
    is_site: bool = False

    def is_gone(self, folder: str, rank: int) -> bool:
        """As `guard.is_gone`: both its guard and its supervisor are dead, on the one machine there is."""
        guard = self.guards.get((folder, rank))
        return len(self.nodes) == 1 and not self.is_site and guard is not None and not guard.holds_lock

    def read_claims(self, folder: str, incarnation: str = "") -> Claims:
        """As `election.read_claims`."""
        claims = sorted(self.claims.get(folder, []), key=lambda claim: claim.epoch, reverse=True)
        own = next((claim for claim in claims if claim.incarnation == incarnation), None)
        later = [other for other in self._other_jobs(folder, self.claims) if _number(other) > _number(folder)]
        return Claims(own, claims[0] if claims else None, bool(incarnation and later))

    def taken_over_by(self, folder: str, epoch: int) -> str:
        """Say which claim counts more than that of a leader; empty when none does."""
        later = [claim.epoch for claim in self.claims.get(folder, []) if claim.epoch > epoch]
        jobs = [other for other in self._other_jobs(folder, self.claims) if _number(other) > _number(folder)]
        if later:
            return f"epoch {max(later)}"
        return max(jobs, key=_number) if jobs and self.is_site else ""

    def beat(self, folder: str, incarnation: str, rank: int) -> None:
        """A replica's heartbeat reaches the server."""
        path = str(heartbeat_path(Path(folder) / incarnation, rank))
        self.heartbeats.setdefault(folder, {})[path] = f"{self.world.now:.6f}".encode()

    def read_heartbeats(self, folder: Path, own_incarnation: str) -> Mapping[str, bytes]:
        """As `fence.read_heartbeats`."""
        own = str(folder / own_incarnation) + "/"
        jobs = [str(folder), *self._other_jobs(str(folder), self.heartbeats)]
        heartbeats = [item for job in jobs for item in self.heartbeats.get(job, {}).items()]
        return {path: beat for path, beat in heartbeats if not path.startswith(own)}

    def _other_jobs(self, folder: str, known: Iterable[str]) -> list[str]:
        """As `election.other_jobs`, of the folders that have something."""
        task = folder.rpartition("-")[0]
        return [other for other in known if other != folder and other.rpartition("-")[0] == task]

    def publish_claim(self, folder: str, claim: Leadership) -> bool:
        """As `election.publish_claim`."""
        claims = self.claims.setdefault(folder, [])
        if any(other.epoch == claim.epoch for other in claims):
            return False
        claims.append(claim)
        return True


def _number(folder: str) -> int:
    return int(folder.rpartition("-")[2])
