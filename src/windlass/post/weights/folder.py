"""Folder of the versions of a run's weights; it ends with its owner, also one that was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from windlass.core.files import take_lock

__all__ = ["WeightsFolder"]

_MEMORY = Path("/dev/shm")  # noqa: S108 - only a new folder of its own is used there
_PREFIX = "windlass-weights-"
_LOCK = "owner.lock"
_VERSIONS_AT_ONCE = 4


class WeightsFolder:
    """A new folder that its owner has locked; folders of owners that are gone are removed first.

    Args:
        num_bytes: size of a version.
        place: where to create it; None: in the machine's memory if it has room for some versions, else on disk.
    """

    def __init__(self, num_bytes: int, place: Path | None = None) -> None:
        if place is None:
            has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _VERSIONS_AT_ONCE * num_bytes
            place = _MEMORY if has_room else Path(tempfile.gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob(f"{_PREFIX}*"):
            _remove_if_left(old)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        take_lock(descriptor, self.path / _LOCK)
        self.close = weakref.finalize(self, _end, self.path, descriptor)
        """Remove the folder; idempotent, and done at the end of the process too."""


def _end(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


def _remove_if_left(path: Path) -> None:
    """Remove a folder unless its owner lives, it is another user's, or its owner has not locked it yet."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            take_lock(descriptor, path / _LOCK)  # a living owner: BlockingIOError, which is an OSError
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
