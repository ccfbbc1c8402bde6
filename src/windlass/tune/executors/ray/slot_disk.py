"""A slot's own folder on its node's disk, where the node does not see the sweep's storage.

Checkpoints are made here and fetched by the head in pieces; one that a trial goes on from is brought here likewise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from windlass.core.process import ProcessId, identify, is_alive

__all__ = ["SlotDisk"]

_OWNER = ".owner"


class SlotDisk:
    """The folder `<tmp>/windlass-slots-<uid>/<slot>`; goes with the slot, or with the next one on the same node."""

    def __init__(self, slot: str, root: Path | None = None) -> None:
        root = _private(root or Path(tempfile.gettempdir(), f"windlass-slots-{os.getuid()}"))
        _sweep(root)
        self.path = root / slot
        self.path.mkdir(parents=True, mode=0o700)
        (self.path / _OWNER).write_text(str(identify(os.getpid())))

    def places(self) -> dict[str, str]:
        """Folder and storage of the sweep as a worker here has them."""
        return {"folder": str(self.path), "storage": str(self.path / "checkpoints")}

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """The files of a checkpoint made here, by their names in it, with their sizes."""
        root = self._within(folder)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return [(str(path.relative_to(root)), path.stat().st_size) for path in files]

    def read(self, folder: str, name: str, offset: int, num_bytes: int) -> bytes:
        """A piece of a file."""
        with self._within(folder, name).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)

    def write(self, folder: str, name: str, offset: int, piece: bytes) -> None:
        """Put a piece of a file here; the first one makes it."""
        path = self._within(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if offset == 0 else "r+b") as file:
            file.seek(offset)
            file.write(piece)

    def keep_only(self, folder: str) -> None:
        """Delete the checkpoints beside this one that are older, for the head has them."""
        kept = self._within(folder)
        for other in kept.parent.glob("[0-9]*"):
            if _order(other) < _order(kept):
                shutil.rmtree(other, ignore_errors=True)

    def clear(self, *kept: str) -> None:
        """Delete what earlier attempts left."""
        for folder in ("checkpoints", "restored"):
            for child in (self.path / folder).glob("*"):
                if str(child) not in kept:
                    shutil.rmtree(child, ignore_errors=True)

    def remove(self) -> None:
        """Delete the folder; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _within(self, folder: str, name: str = "") -> Path:
        path = Path(os.path.normpath(self.path / folder / name))
        if not path.is_relative_to(self.path):
            raise ValueError(f"{path} is not in {self.path}")
        return path


def _order(checkpoint: Path) -> tuple[int, ...]:
    """Iteration and attempt; see `folder.checkpoint_name`."""
    return tuple(int(part) for part in checkpoint.name.split("-"))


def _private(root: Path) -> Path:
    """The folder of all slots of this user; another one where somebody else has made it, who could put code into it."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
    found = root.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return root if is_ours else Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))


def _sweep(root: Path) -> None:
    """Delete folders of slots that were killed."""
    for owner in root.glob(f"*/{_OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            if not is_alive(ProcessId.parse(owner.read_text())):
                shutil.rmtree(owner.parent, ignore_errors=True)
