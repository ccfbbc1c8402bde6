"""Who of a gang is there, as its leader hears it: the newest word of each replica, and since when one is missing. Pure."""

from __future__ import annotations

from windlass.record.state import End
from windlass.supervise.gang.messages import Phase, ReplicaStatus

__all__ = ["LOST_AFTER_S", "SILENT_AFTER_S", "Membership"]

LOST_AFTER_S = 15.0
"""A replica whose connection has been gone for so long is lost; a restart by its guard takes under 5 s."""

SILENT_AFTER_S = 240.0
"""A connection without a word for so long counts as gone; a shared disk may hold a supervisor up for three minutes."""

_HELD_UP_S = 5.0
"""A leader that has not ticked for so long was held up itself: what it did not hear says nothing."""

_RESPAWN_AFTER_S = 5.0


class Membership:
    """The replicas of a gang."""

    def __init__(self, num_replicas: int, now: float) -> None:
        self.num_replicas = num_replicas
        self.statuses: dict[int, ReplicaStatus] = {}
        self._seen: dict[int, float] = {}
        self._lost_at: dict[int, float] = {}
        self._respawned_at: dict[int, float] = {}
        self.killed: dict[int, str] = {}
        self._ticked_at = now

    def miss_all(self, now: float) -> None:
        """Nobody is there until they report to this leader."""
        self._lost_at = dict.fromkeys(range(self.num_replicas), now)

    def on_status(self, status: ReplicaStatus, now: float) -> bool:
        """A replica's state arrived; returns whether it says anything new."""
        is_new = self.statuses.get(status.rank) != status or status.rank in self._lost_at
        self.statuses[status.rank] = status
        self._seen[status.rank] = now
        self._lost_at.pop(status.rank, None)
        self.killed.pop(status.rank, None)
        return is_new

    def on_disconnected(self, rank: int, now: float) -> None:
        """The connection to a replica broke; it has some time to come back."""
        self._lost_at.setdefault(rank, now)

    def on_gone(self, rank: int, now: float, killed: str = "") -> None:
        """It is known of an absent replica that it has no living guard and supervisor: no waiting for it.

        Args:
            killed: its processes, on a machine that lives, in words.
        """
        if killed:
            self.killed[rank] = killed
        self._lost_at[rank] = min(self._lost_at.get(rank, now), now - LOST_AFTER_S)

    def miss_the_silent(self, now: float) -> None:
        """Notice replicas that are gone without their connection telling: a node without power, a cable."""
        held_up_s = now - self._ticked_at
        self._ticked_at = now
        for rank, seen_at in self._seen.items():
            if held_up_s > _HELD_UP_S:
                self._seen[rank] = seen_at + held_up_s
            elif now >= seen_at + SILENT_AFTER_S:
                self._lost_at.setdefault(rank, now)

    @property
    def absent(self) -> list[int]:
        """Replicas that are not connected now and may come, or come back."""
        return [rank for rank in range(self.num_replicas) if not self._is_here(rank)]

    def lost(self, now: float) -> list[int]:
        """Replicas that have been gone for too long, in order."""
        return self.missed(now, LOST_AFTER_S)

    def missed(self, now: float, for_s: float) -> list[int]:
        """Replicas that were here and have been gone for so long, in order."""
        return sorted(rank for rank, since in self._lost_at.items() if now >= since + for_s)

    def notice(self) -> ReplicaStatus | None:
        """The first replica, by rank, whose node was told to go."""
        noticed = [status for status in self.statuses.values() if status.notice]
        return min(noticed, key=lambda status: status.rank) if noticed else None

    def ready(self, attempt: int) -> set[int]:
        """Replicas that are here and wait for the start of an attempt."""
        return {
            rank
            for rank, status in self.statuses.items()
            if self._is_here(rank) and status.attempt == attempt and status.phase is Phase.READY
        }

    def ended(self, attempt: int) -> dict[int, End]:
        """How replicas say that their part of an attempt ended, by rank."""
        return {
            rank: status.end
            for rank, status in sorted(self.statuses.items())
            if status.attempt == attempt and status.phase is Phase.ENDED and status.end is not None
        }

    def host(self, rank: int) -> str:
        """The machine of a replica; empty when it was never heard."""
        return self.statuses[rank].host if rank in self.statuses else ""

    def due_for_respawn(self, now: float) -> list[int]:
        """Replicas to start again now: at once when they were never there, with patience later."""
        found = []
        for rank in self.absent:
            if now >= self._respawned_at.get(rank, now - _RESPAWN_AFTER_S) + _RESPAWN_AFTER_S:
                self._respawned_at[rank] = now
                found.append(rank)
        return found

    def _is_here(self, rank: int) -> bool:
        return rank in self.statuses and rank not in self._lost_at
