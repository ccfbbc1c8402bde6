"""When the ranks of an attempt must be still: the pure policy on both sides of the fence.

    writer: heartbeat written -> the ranks may go on; none for stop_s -> stopped; none for kill_s, or superseded -> killed
    reader: no heartbeat of another start of the job has changed for quiet_s -> nothing of it goes on

A heartbeat counts for the writer from when its write began, for the reader from when it was surely seen, each on its own
clock. So with stop_s < quiet_s the writer's ranks are still before a reader believes so, however long a write or a
read hangs. No I/O here but `read_heartbeats`, which a simulation replaces; time comes in with the events.
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
"""What is stopped or killed is looked for again so often: a process that hung in the kernel obeys late."""

_NUM_MISSED = 3


class Action(Enum):
    """What the fencing agent does to all of the user's processes of its replica; each may be done again and again."""

    STOP = "stop"
    CONTINUE = "continue"
    KILL = "kill"


class FenceState(IntEnum):
    """How a replica stands with the shared file system."""

    FREE = 0
    SILENT = 1
    STOPPED = 2
    GONE = 3
    SUPERSEDED = 4


@dataclass(frozen=True)
class FenceDecision:
    """All that a fencing agent knows; what the supervisor reads of it, and what the next fencing agent begins with.

    Attributes:
        renewed_at: when the write of the newest known heartbeat began, on the clock that counts from boot.
        lost_s: sum of all times without a sign of life that are over.
        killed_at: when user processes were last killed, on the same clock; 0: never.
        killed_as: how the replica stood then.
        killed_after_s: how long the file system had been silent then.
    """

    state: FenceState = FenceState.FREE
    renewed_at: float = 0.0
    lost_s: float = 0.0
    killed_at: float = 0.0
    killed_as: FenceState = FenceState.FREE
    killed_after_s: float = 0.0

    def pack(self) -> bytes:
        """A fixed number of bytes."""
        return _DECISION.pack(
            self.state, self.renewed_at, self.lost_s, self.killed_at, self.killed_as, self.killed_after_s
        )

    @classmethod
    def unpack(cls, raw: bytes) -> FenceDecision:
        """Read back what `pack` wrote; of fewer bytes, the ruling before any."""
        if len(raw) < _DECISION.size:
            return cls()
        state, renewed_at, lost_s, killed_at, killed_as, after_s = _DECISION.unpack(raw[: _DECISION.size])
        return cls(FenceState(state), renewed_at, lost_s, killed_at, FenceState(killed_as), after_s)

    def why_killed(self, started_at: float) -> str:
        """Why the fencing agent killed a process that began at `started_at` (seconds from boot); empty when it did not."""
        if not self.killed_at or self.killed_at < started_at:
            return ""
        if self.killed_as is FenceState.SUPERSEDED:
            return "another start of this job took over"
        return f"the shared file system was gone for {self.killed_after_s:.0f} s"


class FencingAgentCore:
    """Decides for the user's processes of one replica.

    While the whole replica is suspended, by its scheduler or with its machine, nothing can be heard, so that time counts
    for stopping, and not for killing.

    Args:
        ruling: where an earlier fencing agent of this replica stopped, or `FenceDecision(renewed_at=now)`.
    """

    def __init__(self, fencing: Fencing, decision: FenceDecision) -> None:
        self.decision = decision
        self._fencing = fencing
        self._silent_s = min(_NUM_MISSED * fencing.renew_s, fencing.stop_s)
        self._heard_at = decision.renewed_at
        self._spared_until = 0.0

    def beat(self, began: float, now: float) -> list[Action]:
        """A heartbeat has been written and no other start of the job was seen; `began`: when that turn began."""
        silence_s = now - self._heard_at
        self._heard_at = now
        lost_s = self.decision.lost_s + (silence_s if silence_s > self._silent_s else 0.0)
        self._become(renewed_at=max(self.decision.renewed_at, began), lost_s=lost_s)
        return self.tick(now)

    def superseded(self, now: float) -> list[Action]:
        """Another start of the job took over; that is never taken back."""
        self._become(state=FenceState.SUPERSEDED)
        return self.tick(now)

    def resumed(self, now: float) -> None:
        """This very fencing agent did not run for a while, until now: silence kills only if `stop_s` more bring no heartbeat.

        Not what was to be killed already.
        """
        if self.decision.state not in (FenceState.GONE, FenceState.SUPERSEDED):
            self._spared_until = now + self._fencing.stop_s

    def tick(self, now: float) -> list[Action]:
        """Time passed."""
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
        """User processes were found and are killed now."""
        state = self.decision.state
        self._become(killed_at=now, killed_as=state, killed_after_s=now - self.decision.renewed_at)

    def next_at(self, now: float) -> float:
        """When `tick` must be called at the latest."""
        limits = [self.decision.renewed_at + s for s in (self._silent_s, self._fencing.stop_s, self._fencing.kill_s)]
        if self.decision.state in (FenceState.FREE, FenceState.SILENT):
            return min((at for at in limits if at > now), default=now + _AGAIN_S)
        return min(at for at in (*limits, now + _AGAIN_S) if at > now)

    def _become(self, **changes: object) -> None:
        self.decision = replace(self.decision, **changes)  # type: ignore[arg-type]


def heartbeat_path(place: Path, rank: int) -> Path:
    """A replica's heartbeat, in the folder of its start of the job."""
    return place / f"heartbeat-{rank}"


def read_heartbeats(job_folder: Path, own_incarnation: str) -> Mapping[str, bytes]:
    """Contents of the heartbeat files of all other starts of a job, by path; blocks on the shared file system.

    Those of the other jobs of the task are among them where this start has a name.

    Raises:
        OSError: it cannot be reached, or a heartbeat went away meanwhile.
    """
    jobs = [job_folder, *(other_jobs(job_folder).values() if own_incarnation else ())]
    entries = [job / name for job in jobs for name in os.listdir(str(job)) if not name.startswith(".")]
    places = [*jobs, *(path for path in entries if path.is_dir())]
    others = [place for place in places if place != job_folder / own_incarnation]
    heartbeats = [place / name for place in others for name in os.listdir(str(place)) if name.startswith("heartbeat-")]
    return {str(heartbeat): heartbeat.read_bytes() for heartbeat in heartbeats}


class HeartbeatWatch:
    """The successor's side: whether everything of the other starts of a job has been still for long enough.

    A start that never wrote a heartbeat is quiet after `quiet_s` as well; whether its attempt's end is recorded, so that
    nobody need wait, is the caller's to know.

    Args:
        quiet_s: seconds; greater than the `stop_s` of those who write.
        read: `read_heartbeats`, or a simulation's.
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
        """Whether no heartbeat has changed for `quiet_s`; `now` was taken before the call. What cannot be read changed.

        Stillness counts from the first look that began after the change was seen: a read may hang on its way.
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
