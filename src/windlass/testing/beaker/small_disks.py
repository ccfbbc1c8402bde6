"""Small disks: tmpfs mounts in the fake's folder, removed when it closes."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.process import run

__all__ = ["SmallDisks"]


class SmallDisks:
    """Collection of small disks by name, each mounted as an ordinary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: dict[str, Path] = {}

    def make(self, name: str, size_bytes: int) -> None:
        """Mount a small disk.

        Raises:
            PreconditionError: this process is not root, or the mount fails.
        """
        if os.geteuid() != 0:
            raise PreconditionError(
                "a disk that fills up is a mount, and only root can mount",
                hint="run the test as root, or in a container",
                code="precondition",
            )
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        done = run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "fake-beaker", str(folder)])
        if done.code != 0:
            raise PreconditionError(
                f"cannot mount a small disk at {folder}: {done.stderr.strip()}", code="precondition"
            )
        self._mounted[name] = folder
        atexit.register(self.close)

    def find(self, name: str) -> Path | None:
        """Return the folder of a small disk, or None if there is no disk with that name."""
        return self._mounted.get(name)

    def close(self) -> None:
        """Unmount all disks. Idempotent."""
        for folder in self._mounted.values():
            run(["umount", "-l", str(folder)])
        self._mounted.clear()
        atexit.unregister(self.close)
