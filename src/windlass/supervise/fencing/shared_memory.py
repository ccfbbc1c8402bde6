"""Memory page shared by a guard, its supervisor and its fencing agent, without any file system."""

from __future__ import annotations

import os
import struct
import time

from windlass.core.dataclass import dataclass
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.linux import create_memory_file

__all__ = ["SharedMemory", "since_boot"]

_PID = struct.Struct("<q")
_SUPERVISOR_AT = 256
_AGENT_AT = 264


def since_boot() -> float:
    """Return the seconds since boot, including suspensions, on the clock of processes' start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class SharedMemory:
    """Shared page; each item is written with one `pwrite` by one writer.

    Attributes:
        fd: anonymous file in memory.
    """

    fd: int

    @classmethod
    def create(cls) -> SharedMemory:
        """Create an empty page."""
        return cls(create_memory_file("windlass-shared"))

    def decision(self) -> FenceDecision:
        """Return the newest decision of the fencing agent."""
        return FenceDecision.unpack(os.pread(self.fd, _SUPERVISOR_AT, 0))

    def publish(self, decision: FenceDecision) -> None:
        """Store a decision; called by the fencing agent."""
        os.pwrite(self.fd, decision.pack(), 0)

    def supervisor(self) -> int:
        """Return the pid of the newest supervisor; 0 before the first one starts."""
        return self._pid(_SUPERVISOR_AT)

    def set_supervisor(self, pid: int) -> None:
        """Store the pid of the supervisor; called by the guard."""
        os.pwrite(self.fd, _PID.pack(pid), _SUPERVISOR_AT)

    def agent(self) -> int:
        """Return the pid of the newest fencing agent; 0 before the first one starts."""
        return self._pid(_AGENT_AT)

    def set_agent(self, pid: int) -> None:
        """Store the pid of the fencing agent; called by the guard."""
        os.pwrite(self.fd, _PID.pack(pid), _AGENT_AT)

    def _pid(self, offset: int) -> int:
        raw = os.pread(self.fd, _PID.size, offset)
        return int(_PID.unpack(raw)[0]) if len(raw) == _PID.size else 0
