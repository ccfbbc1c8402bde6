"""Memory use of processes, with shared pages counted proportionally, and out-of-memory kills by the kernel."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path

from windlass.supervise.replica.process_tree import resident_bytes

__all__ = ["OomWatch", "count_oom_kills", "proportional_bytes"]

_LIKELY_BYTES = 48 << 20
"""The kernel kills processes that hold much memory; smaller ones are unlikely victims."""

_LOOK_S = 1.0


def proportional_bytes(pids: Iterable[int]) -> int:
    """Return the RAM that processes use; a page shared by n processes counts as 1/n each. Slow for big processes.

    If the kernel does not provide it, a process's memory counts whole. Source: proc(5), smaps_rollup.
    """
    return sum(_proportional_bytes(pid) for pid in pids)


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except ProcessLookupError:
        return 0
    except OSError:
        return resident_bytes([pid])
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


class OomWatch:
    """Detector of processes that the kernel kills for lack of memory after the detector was created.

    A control group counts the kills of its processes, whatever the kernel needed the memory for; if the group of the
    process is visible, its count decides. Otherwise, as for most containers, only two facts are known: whether any
    process of the machine was killed, and whether this one ever held much memory.

    Args:
        is_contained: whether the process runs in a container, which is not this process's child.
    """

    def __init__(self, *, is_contained: bool) -> None:
        self._is_contained = is_contained
        self._own = _group_of("self")
        self._num_own, self._num_all = _count(self._own), _count_all()
        self._group, self._look_at = self._own, float("-inf")

    def look_at(self, pid: int, now: float) -> None:
        """Store the control group of a live process, at most once a second, since it may move to another."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._group = _group_of(str(pid)) or self._group

    def has_struck(self) -> bool:
        """Return whether such a kill may have happened; call this after waiting for the children."""
        num_own = _count(self._own)
        if num_own is not None and num_own > (self._num_own or 0):
            return True
        if _count_all() <= self._num_all:
            return False
        if self._is_contained:
            return True
        if self._group != self._own:
            return bool(_count(self._group))
        if num_own is not None:
            return False
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 >= _LIKELY_BYTES


def _count_all() -> int:
    """Return how many processes the kernel has killed for lack of memory; source: /proc/vmstat, oom_kill."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def count_oom_kills() -> int:
    """Return how many processes in this control group the kernel has killed for lack of memory; 0 if unknown."""
    return _count(_group_of("self")) or 0


def _count(group: tuple[Path, ...]) -> int | None:
    """Return how many processes in a control group the kernel has killed for lack of memory; None if unknown.

    Source: cgroup-v2, `memory.events`; cgroup-v1 memory, `memory.oom_control`.
    """
    for path in group:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def _group_of(process: str) -> tuple[Path, ...]:
    """Return the files that count the kills in a process's control group, likeliest first.

    Source: cgroups(7), /proc/pid/cgroup.
    """
    found = []
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        return ()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(Path(f"/sys/fs/cgroup{path}/memory.events"))
        elif "memory" in controllers.split(","):
            found.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
            found.append(Path("/sys/fs/cgroup/memory/memory.oom_control"))
    return tuple(found)
