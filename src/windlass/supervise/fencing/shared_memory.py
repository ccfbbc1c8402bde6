"""A page in memory that a guard, its supervisor and its warden share: what each must know without any file system."""

from __future__ import annotations

import os
import struct
import time

from windlass.core.dataclass import dataclass
from windlass.supervise.fencing.fence import Ruling
from windlass.supervise.linux import create_memory_file

__all__ = ["Board", "since_boot"]

_PID = struct.Struct("<q")
_SUPERVISOR_AT = 256
_WARDEN_AT = 264


def since_boot() -> float:
    """Seconds since boot, time asleep included: the clock of process start times, the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Board:
    """The page; every item is written with one `pwrite` by one writer.

    Attributes:
        fd: nameless file in memory.
    """

    fd: int

    @classmethod
    def create(cls) -> Board:
        """An empty page."""
        return cls(create_memory_file("windlass-board"))

    def ruling(self) -> Ruling:
        """What the warden last said."""
        return Ruling.unpack(os.pread(self.fd, _SUPERVISOR_AT, 0))

    def rule(self, ruling: Ruling) -> None:
        """Written by the warden."""
        os.pwrite(self.fd, ruling.pack(), 0)

    def supervisor(self) -> int:
        """Process number of the newest supervisor; 0 before the first."""
        return self._pid(_SUPERVISOR_AT)

    def set_supervisor(self, pid: int) -> None:
        """Written by the guard."""
        os.pwrite(self.fd, _PID.pack(pid), _SUPERVISOR_AT)

    def warden(self) -> int:
        """Process number of the newest warden; 0 before the first."""
        return self._pid(_WARDEN_AT)

    def set_warden(self, pid: int) -> None:
        """Written by the guard."""
        os.pwrite(self.fd, _PID.pack(pid), _WARDEN_AT)

    def _pid(self, offset: int) -> int:
        raw = os.pread(self.fd, _PID.size, offset)
        return int(_PID.unpack(raw)[0]) if len(raw) == _PID.size else 0
