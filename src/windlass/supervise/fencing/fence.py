"""When the ranks of an attempt must be still: the pure policy on both sides of the fence.

    writer: pulse written -> the ranks may go on; none for stop_s -> stopped; none for kill_s, or superseded -> killed
    reader: no pulse of another start of the job has changed for quiet_s -> nothing of it goes on

A pulse counts for the writer from when its write began, for the reader from when it was surely seen, each on its own
clock. So with stop_s < quiet_s the writer's ranks are still before a reader believes so, however long a write or a
read hangs. No I/O here but `read_pulses`, which a simulation replaces; time comes in with the events.
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

__all__ = ["Action", "PulseWatch", "Ruling", "Standing", "WardenCore", "pulse_path", "read_pulses"]

_RULING = struct.Struct("<qdddqd")
_AGAIN_S = 1.0
"""What is stopped or killed is looked for again so often: a process that hung in the kernel obeys late."""

_NUM_MISSED = 3


class Action(Enum):
    """What the warden does to all of the user's processes of its replica; each may be done again and again."""

    STOP = "stop"
    CONTINUE = "continue"
    KILL = "kill"


class Standing(IntEnum):
    """How a replica stands with the shared file system."""

    FREE = 0
    SILENT = 1
    STOPPED = 2
    GONE = 3
    SUPERSEDED = 4


@dataclass(frozen=True)
class Ruling:
    """All that a warden knows; what the supervisor reads of it, and what the next warden begins with.

    Attributes:
        renewed_at: when the write of the newest known pulse began, on the clock that counts from boot.
        lost_s: sum of all times without a sign of life that are over.
        killed_at: when user processes were last killed, on the same clock; 0: never.
        killed_as: how the replica stood then.
        killed_after_s: how long the file system had been silent then.
    """

    standing: Standing = Standing.FREE
    renewed_at: float = 0.0
    lost_s: float = 0.0
    killed_at: float = 0.0
    killed_as: Standing = Standing.FREE
    killed_after_s: float = 0.0

    def pack(self) -> bytes:
        """A fixed number of bytes."""
        return _RULING.pack(
            self.standing, self.renewed_at, self.lost_s, self.killed_at, self.killed_as, self.killed_after_s
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Ruling:
        """Read back what `pack` wrote; of fewer bytes, the ruling before any."""
        if len(raw) < _RULING.size:
            return cls()
        standing, renewed_at, lost_s, killed_at, killed_as, after_s = _RULING.unpack(raw[: _RULING.size])
        return cls(Standing(standing), renewed_at, lost_s, killed_at, Standing(killed_as), after_s)

    def why_killed(self, started_at: float) -> str:
        """Why the warden killed a process that began at `started_at` (seconds from boot); empty when it did not."""
        if not self.killed_at or self.killed_at < started_at:
            return ""
        if self.killed_as is Standing.SUPERSEDED:
            return "another start of this job took over"
        return f"the shared file system was gone for {self.killed_after_s:.0f} s"


class WardenCore:
    """Decides for the user's processes of one replica.

    While the whole replica is suspended, by its scheduler or with its machine, nothing can be heard, so that time counts
    for stopping, and not for killing.

    Args:
        ruling: where an earlier warden of this replica stopped, or `Ruling(renewed_at=now)`.
    """

    def __init__(self, fencing: Fencing, ruling: Ruling) -> None:
        self.ruling = ruling
        self._fencing = fencing
        self._silent_s = min(_NUM_MISSED * fencing.renew_s, fencing.stop_s)
        self._heard_at = ruling.renewed_at
        self._spared_until = 0.0

    def beat(self, began: float, now: float) -> list[Action]:
        """A pulse has been written and no other start of the job was seen; `began`: when that turn began."""
        silence_s = now - self._heard_at
        self._heard_at = now
        lost_s = self.ruling.lost_s + (silence_s if silence_s > self._silent_s else 0.0)
        self._become(renewed_at=max(self.ruling.renewed_at, began), lost_s=lost_s)
        return self.tick(now)

    def superseded(self, now: float) -> list[Action]:
        """Another start of the job took over; that is never taken back."""
        self._become(standing=Standing.SUPERSEDED)
        return self.tick(now)

    def resumed(self, now: float) -> None:
        """This very warden did not run for a while, until now: silence kills only if `stop_s` more bring no pulse.

        Not what was to be killed already.
        """
        if self.ruling.standing not in (Standing.GONE, Standing.SUPERSEDED):
            self._spared_until = now + self._fencing.stop_s

    def tick(self, now: float) -> list[Action]:
        """Time passed."""
        was = self.ruling.standing
        if was is Standing.SUPERSEDED:
            return [Action.KILL]
        age_s = now - self.ruling.renewed_at
        if age_s >= self._fencing.kill_s and now >= self._spared_until:
            self._become(standing=Standing.GONE)
            return [Action.KILL]
        if age_s >= self._fencing.stop_s:
            self._become(standing=Standing.STOPPED)
            return [Action.STOP]
        self._become(standing=Standing.SILENT if age_s >= self._silent_s else Standing.FREE)
        return [Action.CONTINUE] if was in (Standing.STOPPED, Standing.GONE) else []

    def killed(self, now: float) -> None:
        """User processes were found and are killed now."""
        standing = self.ruling.standing
        self._become(killed_at=now, killed_as=standing, killed_after_s=now - self.ruling.renewed_at)

    def next_at(self, now: float) -> float:
        """When `tick` must be called at the latest."""
        limits = [self.ruling.renewed_at + s for s in (self._silent_s, self._fencing.stop_s, self._fencing.kill_s)]
        if self.ruling.standing in (Standing.FREE, Standing.SILENT):
            return min((at for at in limits if at > now), default=now + _AGAIN_S)
        return min(at for at in (*limits, now + _AGAIN_S) if at > now)

    def _become(self, **changes: object) -> None:
        self.ruling = replace(self.ruling, **changes)  # type: ignore[arg-type]


def pulse_path(place: Path, rank: int) -> Path:
    """A replica's pulse, in the folder of its start of the job."""
    return place / f"pulse-{rank}"


def read_pulses(job_folder: Path, own_incarnation: str) -> Mapping[str, bytes]:
    """Contents of the pulse files of all other starts of a job, by path; blocks on the shared file system.

    Those of the other jobs of the task are among them where this start has a name.

    Raises:
        OSError: it cannot be reached, or a pulse went away meanwhile.
    """
    jobs = [job_folder, *(other_jobs(job_folder).values() if own_incarnation else ())]
    entries = [job / name for job in jobs for name in os.listdir(str(job)) if not name.startswith(".")]
    places = [*jobs, *(path for path in entries if path.is_dir())]
    others = [place for place in places if place != job_folder / own_incarnation]
    pulses = [place / name for place in others for name in os.listdir(str(place)) if name.startswith("pulse-")]
    return {str(pulse): pulse.read_bytes() for pulse in pulses}


class PulseWatch:
    """The successor's side: whether everything of the other starts of a job has been still for long enough.

    A start that never wrote a pulse is quiet after `quiet_s` as well; whether its attempt's end is recorded, so that
    nobody need wait, is the caller's to know.

    Args:
        quiet_s: seconds; greater than the `stop_s` of those who write.
        read: `read_pulses`, or a simulation's.
    """

    def __init__(
        self,
        job_folder: Path,
        own_incarnation: str,
        quiet_s: float,
        read: Callable[[Path, str], Mapping[str, bytes]] = read_pulses,
    ) -> None:
        self._job_folder, self._own, self._quiet_s, self._read = job_folder, own_incarnation, quiet_s, read
        self._known: Mapping[str, bytes] | None = None
        self._still_since: float | None = None

    def look(self, now: float) -> bool:
        """Whether no pulse has changed for `quiet_s`; `now` was taken before the call. What cannot be read changed.

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
