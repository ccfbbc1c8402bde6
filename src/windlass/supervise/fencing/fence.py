"""Pure fencing policy, for writers and readers of heartbeats: when the ranks of an attempt must not run.

    writer: heartbeat written -> the ranks may run; none for stop_s -> stopped; none for kill_s, or superseded -> killed
    reader: no heartbeat of another start of the job has changed for quiet_s -> nothing of it is running

A heartbeat counts for the writer from the time its write began, and for the reader from the time it was certainly
seen, each by its local clock. So with stop_s < quiet_s the writer's ranks are stopped before a reader assumes that they
are, however long a write or a read hangs. No I/O except `read_heartbeats`, which a simulation replaces; events carry the
time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import Callable

from windlass.core.dataclass import dataclass
from windlass.supervise.gang.election import other_jobs
from windlass.supervise.job import Fencing

__all__ = [
    "Action",
    "FenceDecision",
    "FenceState",
    "FencingAgentCore",
    "HeartbeatWatch",
    "heartbeat_path",
    "read_heartbeats",
]

_DECISION = struct.Struct("<qdddqd")
_AGAIN_S = 1.0
"""Interval at which a stop or kill is repeated, since a process that hangs in the kernel gets signals late."""

_NUM_MISSED = 3


class Action(Enum):
    """Action on all of a replica's user processes; it may be repeated."""

    STOP = "stop"
    CONTINUE = "continue"
    KILL = "kill"


class FenceState(IntEnum):
    """State of a replica's access to the shared file system."""

    FREE = 0
    SILENT = 1
    STOPPED = 2
    GONE = 3
    SUPERSEDED = 4


@dataclass(frozen=True)
class FenceDecision:
    """State of a fencing agent; the supervisor reads it, and the next agent starts from it.

    Attributes:
        renewed_at: time at which the write of the newest known heartbeat began, in seconds since boot.
        lost_s: total length of all silences that are over.
        killed_at: time at which user processes were last killed, on the same clock; 0 means never.
        killed_as: state of the replica at that time.
        killed_after_s: how long the file system had been unavailable at that time.
    """

    state: FenceState = FenceState.FREE
    renewed_at: float = 0.0
    lost_s: float = 0.0
    killed_at: float = 0.0
    killed_as: FenceState = FenceState.FREE
    killed_after_s: float = 0.0

    def pack(self) -> bytes:
        """Encode as a fixed number of bytes."""
        return _DECISION.pack(
            self.state, self.renewed_at, self.lost_s, self.killed_at, self.killed_as, self.killed_after_s
        )

    @classmethod
    def unpack(cls, raw: bytes) -> FenceDecision:
        """Decode what `pack` wrote; fewer bytes give the initial decision."""
        if len(raw) < _DECISION.size:
            return cls()
        state, renewed_at, lost_s, killed_at, killed_as, after_s = _DECISION.unpack(raw[: _DECISION.size])
        return cls(FenceState(state), renewed_at, lost_s, killed_at, FenceState(killed_as), after_s)

    def why_killed(self, started_at: float) -> str:
        """Return why the agent killed a process started at `started_at` (seconds from boot), or ""."""
        if not self.killed_at or self.killed_at < started_at:
            return ""
        if self.killed_as is FenceState.SUPERSEDED:
            return "a later start of this job took over"
        return f"the shared file system was gone for {self.killed_after_s:.0f} s"


class FencingAgentCore:
    """Core of one replica's fencing agent: all decisions, without input or output.

    While the whole replica is suspended, by its scheduler or with its machine, no heartbeat can arrive; that time counts
    for stopping, but not for killing.

    Args:
        decision: last state of an earlier agent of this replica, or `FenceDecision(renewed_at=now)`.
    """

    def __init__(self, fencing: Fencing, decision: FenceDecision) -> None:
        self.decision = decision
        self._fencing = fencing
        self._silent_s = min(_NUM_MISSED * fencing.renew_s, fencing.stop_s)
        self._received_at = decision.renewed_at
        self._spared_until = 0.0

    def beat(self, began: float, now: float) -> list[Action]:
        """Handle a heartbeat whose turn began at `began` and which found no other start of the job."""
        silence_s = now - self._received_at
        self._received_at = now
        lost_s = self.decision.lost_s + (silence_s if silence_s > self._silent_s else 0.0)
        self._become(renewed_at=max(self.decision.renewed_at, began), lost_s=lost_s)
        return self.tick(now)

    def superseded(self, now: float) -> list[Action]:
        """Handle the final takeover by another start of the job."""
        self._become(state=FenceState.SUPERSEDED)
        return self.tick(now)

    def resumed(self, now: float) -> None:
        """Handle the end of a suspension of the agent itself.

        Silence kills only after another `stop_s` without a heartbeat, unless it had already led to a kill.
        """
        if self.decision.state not in (FenceState.GONE, FenceState.SUPERSEDED):
            self._spared_until = now + self._fencing.stop_s

    def tick(self, now: float) -> list[Action]:
        """Return the actions due at this time."""
        was = self.decision.state
        if was is FenceState.SUPERSEDED:
            return [Action.KILL]
        age_s = now - self.decision.renewed_at
        if age_s >= self._fencing.kill_s and now >= self._spared_until:
            self._become(state=FenceState.GONE)
            return [Action.KILL]
        if age_s >= self._fencing.stop_s:
            self._become(state=FenceState.STOPPED)
            return [Action.STOP]
        self._become(state=FenceState.SILENT if age_s >= self._silent_s else FenceState.FREE)
        return [Action.CONTINUE] if was in (FenceState.STOPPED, FenceState.GONE) else []

    def killed(self, now: float) -> None:
        """Record that user processes exist and are being killed."""
        state = self.decision.state
        self._become(killed_at=now, killed_as=state, killed_after_s=now - self.decision.renewed_at)

    def next_at(self, now: float) -> float:
        """Return the time by which `tick` must be called."""
        limits = [self.decision.renewed_at + s for s in (self._silent_s, self._fencing.stop_s, self._fencing.kill_s)]
        if self.decision.state in (FenceState.FREE, FenceState.SILENT):
            return min((at for at in limits if at > now), default=now + _AGAIN_S)
        return min(at for at in (*limits, now + _AGAIN_S) if at > now)

    def _become(self, **changes: object) -> None:
        self.decision = replace(self.decision, **changes)  # type: ignore[arg-type]


def heartbeat_path(place: Path, rank: int) -> Path:
    """Return the path of a replica's heartbeat file; `place` is the folder of its start of the job."""
    return place / f"heartbeat-{rank}"


def read_heartbeats(job_folder: Path, own_incarnation: str) -> Mapping[str, bytes]:
    """Return the content of the heartbeat files of all other starts of a job, by path.

    Blocks on the shared file system.

    If this start has a name, the heartbeats of other jobs of the task are included.

    Raises:
        OSError: the file system cannot be reached, or a file disappeared meanwhile.
    """
    jobs = [job_folder, *(other_jobs(job_folder).values() if own_incarnation else ())]
    entries = [job / name for job in jobs for name in os.listdir(str(job)) if not name.startswith(".")]
    places = [*jobs, *(path for path in entries if path.is_dir())]
    others = [place for place in places if place != job_folder / own_incarnation]
    heartbeats = [place / name for place in others for name in os.listdir(str(place)) if name.startswith("heartbeat-")]
    return {str(heartbeat): heartbeat.read_bytes() for heartbeat in heartbeats}


class HeartbeatWatch:
    """Watch on heartbeats: detects when all other starts of the job have been silent for long enough.

    A start that never wrote a heartbeat also counts as silent after `quiet_s`. The caller checks whether the end of the
    attempt is recorded and waiting is unnecessary.

    Args:
        quiet_s: seconds; greater than the `stop_s` of the writers.
        read: `read_heartbeats`, or its replacement in a simulation.
    """

    def __init__(
        self,
        job_folder: Path,
        own_incarnation: str,
        quiet_s: float,
        read: Callable[[Path, str], Mapping[str, bytes]] = read_heartbeats,
    ) -> None:
        self._job_folder, self._own, self._quiet_s, self._read = job_folder, own_incarnation, quiet_s, read
        self._known: Mapping[str, bytes] | None = None
        self._still_since: float | None = None

    def look(self, now: float) -> bool:
        """Return whether no heartbeat has changed for `quiet_s`; a failed read counts as a change.

        Args:
            now: time before the call. Silence counts from the first look that began after the change was seen, since a
                read may hang.
        """
        try:
            found = self._read(self._job_folder, self._own)
        except OSError:
            self._still_since = None
            return False
        if found != self._known:
            self._known, self._still_since = found, None
            return False
        if self._still_since is None:
            self._still_since = now
        return now - self._still_since >= self._quiet_s
