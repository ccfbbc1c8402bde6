"""A control group that bounds the number of processes and the memory of what runs in it.

A limit of processes by RLIMIT_NPROC does not hold for root, so a control group is needed. Its folder is locked while its
owner lives; the next owner on this machine removes what a killed one left.

Source: cgroups(7); the kernel's cgroup-v1/pids.rst, cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

__all__ = ["ControlGroup"]

_PREFIX = "windlass-reward-"
_FILES = {
    ("pids", 1): "pids.max",
    ("pids", 2): "pids.max",
    ("memory", 1): "memory.limit_in_bytes",
    ("memory", 2): "memory.max",
}


class ControlGroup:
    """Folders of one group, one per hierarchy; what the machine does not let this user limit is in `missing`.

    Attributes:
        entries: files that a process writes `0` to in order to enter.
        missing: controllers without a limit, of `pids` and `memory`.
    """

    def __init__(self, *, num_processes: int, memory_bytes: int) -> None:
        name = _PREFIX + uuid.uuid4().hex[:12]
        self._folders: dict[Path, int] = {}
        self.missing: list[str] = []
        for controller, limit in (("pids", num_processes), ("memory", memory_bytes)):
            if not self._limit(controller, limit, name):
                self.missing.append(controller)
        self.entries = [str(folder / "cgroup.procs") for folder in self._folders]

    def close(self) -> None:
        """Remove the folders; the processes in them must have ended. Idempotent."""
        for folder, lock in self._folders.items():
            os.close(lock)
            with contextlib.suppress(OSError):  # a process is still ending: the next owner removes it
                folder.rmdir()
        self._folders.clear()

    def _limit(self, controller: str, limit: int, name: str) -> bool:
        """Set a limit; return False if this user may not, or if the kernel has no such controller here."""
        parent, version = _find(controller)
        if parent is None:
            return False
        folder = parent / name
        try:
            if version == 2 and controller not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            if folder not in self._folders:
                _remove_abandoned(parent)
                folder.mkdir()
                lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._folders[folder] = lock
            (folder / _FILES[controller, version]).write_text(str(limit))
        except OSError:
            return False
        return True


def _find(controller: str) -> tuple[Path | None, int]:
    """Return this process's folder in the hierarchy of a controller, and the version of the interface."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    unified: tuple[Path | None, int] = (None, 2)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(","):
            return _folder(point, paths.get(controller, "/")), 1
        if kind == "cgroup2":
            folder = _folder(point, paths.get("", "/"))
            if controller in (folder / "cgroup.controllers").read_text().split():
                unified = folder, 2
    return unified


def _folder(point: str, path: str) -> Path:
    """Return the folder of a group; the mount itself in a container, whose mount begins at its own group."""
    own = Path(point + path)
    return own if own.is_dir() else Path(point)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another owner removed it, or its processes are still ending
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder.rmdir()
            finally:
                os.close(lock)
