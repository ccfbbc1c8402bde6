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
from collections.abc import Collection
from pathlib import Path

__all__ = ["ControlGroup"]

_PREFIX, _LEAF = "windlass-reward-", "windlass-processes"
_MOVES = 16
"""Rounds in which processes are moved, because they may fork meanwhile."""
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
        self._parents = _parents(("pids", "memory"))
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
        parent, version = self._parents[controller]
        if parent is None:
            return False
        folder = parent / name
        try:
            if folder not in self._folders:
                _remove_abandoned(parent)
                folder.mkdir()
                lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._folders[folder] = lock
            (folder / _FILES[controller, version]).write_text(str(limit))
            if controller == "memory" and (folder / "memory.swap.max").exists():
                (folder / "memory.swap.max").write_text("0")
        except OSError:
            return False
        return True


def _parents(controllers: Collection[str]) -> dict[str, tuple[Path | None, int]]:
    """Return where the group of each controller can be created, and the version of the interface."""
    found: dict[str, tuple[Path | None, int]] = dict.fromkeys(controllers, (None, 2))
    unified: list[str] = []
    own = point = Path("/")
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        for controller in controllers:
            if kind == "cgroup" and controller in options.split(","):
                found[controller] = _folder(mount, paths.get(controller, "/")), 1
        if kind == "cgroup2":
            own, point = _folder(mount, paths.get("", "/")), Path(mount)
            unified = [each for each in controllers if each in _words(point / "cgroup.controllers")]
    unified = [controller for controller in unified if found[controller] == (None, 2)]
    parent = _unified_parent(own, point, unified) if unified else None
    return {**found, **dict.fromkeys(unified, (parent, 2))}


def _unified_parent(own: Path, point: Path, controllers: Collection[str]) -> Path | None:
    """Return a group of the unified hierarchy whose children have these controllers: this process's own or one above.

    A group that has processes cannot give controllers to children. If this process's group is delegated to it, its
    processes are moved into a child first; groups of others are never changed.
    """
    above = [folder for folder in (own, *own.parents) if folder == point or point in folder.parents]
    for folder in above:
        if os.access(folder, os.W_OK) and set(controllers) <= set(_words(folder / "cgroup.subtree_control")):
            return folder
    wanted = " ".join(f"+{controller}" for controller in sorted(controllers))
    for is_moved in (False, True):
        with contextlib.suppress(OSError):
            if is_moved:
                _move_into_child(own)
            (own / "cgroup.subtree_control").write_text(wanted)
            return own
    return None


def _move_into_child(own: Path) -> None:
    """Move the processes of a delegated group into a child of it.

    Raises:
        PermissionError: the group is not delegated: it is neither the root of a namespace, nor marked by systemd.
    """
    if not _is_namespace_root() and not any(
        name in os.listxattr(own) for name in ("user.delegate", "trusted.delegate")
    ):
        raise PermissionError(f"{own} is not delegated")
    child = own / _LEAF
    child.mkdir(exist_ok=True)
    for _ in range(_MOVES):
        processes = _words(own / "cgroup.procs")
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                (child / "cgroup.procs").write_text(process)


def _is_namespace_root() -> bool:
    return "0::/" in Path("/proc/self/cgroup").read_text().splitlines()


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


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
