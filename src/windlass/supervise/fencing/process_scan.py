"""Scan for one replica's user processes that reads nothing that can hang.

Only /proc/PID/stat is read: the command line and the environment of a process that hangs in a page fault on a dead
file system would block their reader too. Source: proc(5); Linux, fs/proc/base.c, the lock of a process's memory map.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from windlass.core.dataclass import dataclass
from windlass.core.process import send_signal

__all__ = ["UserProcessEntry", "UserProcessScan"]

_PAUSE_S = 0.01
_NUM_EMPTY_LOOKS = 2
_NUM_STOP_LOOKS = 5
_KILL_S = 2.0


@dataclass(frozen=True)
class UserProcessEntry:
    """Live user process."""

    pid: int
    is_stopped: bool


class UserProcessScan:
    """Scan for user processes: descendants of a replica's guard or supervisor that are outside their session.

    Args:
        session: session of the guard; the supervisor, the fencing agent and their helpers stay in it.
        guard_name: process name of the guards of this job; the tree of another replica's guard is excluded.
    """

    def __init__(self, session: int, guard_name: str) -> None:
        self._session, self._guard_name = session, guard_name.encode()

    def below(self, roots: Iterable[int]) -> list[UserProcessEntry]:
        """Return the user's processes below `roots`, parents before children."""
        children: dict[int, list[tuple[int, bytes, bytes, int]]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                _add(int(entry), children)
        found: list[UserProcessEntry] = []
        queue = [pid for pid in roots if pid]
        seen = set(queue)
        while queue:
            for pid, name, state, session in children.get(queue.pop(0), ()):
                is_other_guard = name == self._guard_name and session != self._session
                if is_other_guard or pid in seen:
                    continue
                seen.add(pid)
                queue.append(pid)
                if session != self._session and state not in b"ZX":
                    found.append(UserProcessEntry(pid, state in b"Tt"))
        return found

    def stop(self, roots: Iterable[int]) -> None:
        """Send SIGSTOP to the user's processes; one that hangs in the kernel stops when it returns."""
        for _ in range(_NUM_STOP_LOOKS):
            running = [entry.pid for entry in self.below(roots) if not entry.is_stopped]
            if not running:
                return
            _send(running, signal.SIGSTOP)

    def resume(self, roots: Iterable[int]) -> None:
        """Send SIGCONT to the user's processes."""
        _send([entry.pid for entry in self.below(roots)], signal.SIGCONT)

    def kill(self, roots: Iterable[int]) -> list[int]:
        """Send SIGKILL until two scans in a row find no process, for at most two seconds.

        Returns:
            The processes that did not die.
        """
        end = time.monotonic() + _KILL_S
        num_empty = 0
        left: list[int] = []
        while num_empty < _NUM_EMPTY_LOOKS and time.monotonic() < end:
            left = [entry.pid for entry in self.below(roots)]
            num_empty = 0 if left else num_empty + 1
            _send(left, signal.SIGKILL)
        return left


def _send(pids: Iterable[int], number: int) -> None:
    sent = [send_signal(pid, number) for pid in pids]
    if sent:
        time.sleep(_PAUSE_S)


def _add(pid: int, children: dict[int, list[tuple[int, bytes, bytes, int]]]) -> None:
    """Add a process, as (pid, name, state, session), to its parent's children; source: proc(5), stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            head, _, tail = file.read(1024).rpartition(b")")
    except (FileNotFoundError, ProcessLookupError):
        return
    fields = tail.split(None, 4)
    children.setdefault(int(fields[1]), []).append((pid, head.partition(b"(")[2], fields[0], int(fields[3])))
