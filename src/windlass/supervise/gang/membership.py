"""Replicas of a gang, as its leader sees them: their newest statuses, and how long each has been missing. Pure."""

from __future__ import annotations

from windlass.record.state import End
from windlass.supervise.gang.messages import Phase, ReplicaStatus

__all__ = ["LOST_AFTER_S", "SILENT_AFTER_S", "Membership"]

LOST_AFTER_S = 15.0
"""Time after which a disconnected replica counts as lost; a restart by its guard takes less than 5 s."""

SILENT_AFTER_S = 240.0
"""Time after which a silent connection counts as broken; a shared disk may block a supervisor for three minutes."""

_HELD_UP_S = 5.0
"""Gap between ticks from which the leader itself was blocked, so that silence proves nothing."""

_RESPAWN_AFTER_S = 5.0


class Membership:
    """State of a gang's replicas: which are connected, missing or lost."""

    def __init__(self, num_replicas: int, now: float) -> None:
        self.num_replicas = num_replicas
        self.statuses: dict[int, ReplicaStatus] = {}
        self._seen: dict[int, float] = {}
        self._lost_at: dict[int, float] = {}
        self._respawned_at: dict[int, float] = {}
        self.killed: dict[int, str] = {}
        self._ticked_at = now

    def miss_all(self, now: float) -> None:
        """Treat all replicas as missing until they report to this leader."""
        self._lost_at = dict.fromkeys(range(self.num_replicas), now)

    def on_status(self, status: ReplicaStatus, now: float) -> bool:
        """Store a replica's status; return whether it contains anything new."""
        is_new = self.statuses.get(status.rank) != status or status.rank in self._lost_at
        self.statuses[status.rank] = status
        self._seen[status.rank] = now
        self._lost_at.pop(status.rank, None)
        self.killed.pop(status.rank, None)
        return is_new

    def on_disconnected(self, rank: int, now: float) -> None:
        """Record a broken connection; the replica may reconnect for some time."""
        self._lost_at.setdefault(rank, now)

    def on_gone(self, rank: int, now: float, killed: str = "") -> None:
        """Mark an absent replica as lost, since its guard and supervisor are known to be dead.

        Args:
            killed: description of its killed processes, if its machine is alive.
        """
        if killed:
            self.killed[rank] = killed
        self._lost_at[rank] = min(self._lost_at.get(rank, now), now - LOST_AFTER_S)

    def miss_silent(self, now: float) -> None:
        """Mark replicas as missing if their connection is silent but was not closed, as after a power failure."""
        held_up_s = now - self._ticked_at
        self._ticked_at = now
        for rank, seen_at in self._seen.items():
            if held_up_s > _HELD_UP_S:
                self._seen[rank] = seen_at + held_up_s
            elif now >= seen_at + SILENT_AFTER_S:
                self._lost_at.setdefault(rank, now)

    @property
    def absent(self) -> list[int]:
        """Return the replicas that are not connected but may still connect or reconnect."""
        return [rank for rank in range(self.num_replicas) if not self._is_here(rank)]

    def lost(self, now: float) -> list[int]:
        """Return, in order, the replicas that have been gone for too long."""
        return self.missed(now, LOST_AFTER_S)

    def missed(self, now: float, for_s: float) -> list[int]:
        """Return, in order, the replicas that were connected and have been gone for at least `for_s`."""
        return sorted(rank for rank, since in self._lost_at.items() if now >= since + for_s)

    def notice(self) -> ReplicaStatus | None:
        """Return the status of the first replica, by rank, whose node received a notice."""
        noticed = [status for status in self.statuses.values() if status.notice]
        return min(noticed, key=lambda status: status.rank) if noticed else None

    def ready(self, attempt: int) -> set[int]:
        """Return the connected replicas that are ready for the start of an attempt."""
        return {
            rank
            for rank, status in self.statuses.items()
            if self._is_here(rank) and status.attempt == attempt and status.phase is Phase.READY
        }

    def ended(self, attempt: int) -> dict[int, End]:
        """Return the ends that replicas reported for an attempt, by rank."""
        return {
            rank: status.end
            for rank, status in sorted(self.statuses.items())
            if status.attempt == attempt and status.phase is Phase.ENDED and status.end is not None
        }

    def host(self, rank: int) -> str:
        """Return a replica's host; "" before its first report."""
        return self.statuses[rank].host if rank in self.statuses else ""

    def due_for_respawn(self, now: float) -> list[int]:
        """Return the replicas to start now: immediately if they never connected, otherwise after a delay."""
        found = []
        for rank in self.absent:
            if now >= self._respawned_at.get(rank, now - _RESPAWN_AFTER_S) + _RESPAWN_AFTER_S:
                self._respawned_at[rank] = now
                found.append(rank)
        return found

    def _is_here(self, rank: int) -> bool:
        return rank in self.statuses and rank not in self._lost_at
