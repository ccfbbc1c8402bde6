"""Unfinished checkpoints, and cleanup after saves that were killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field

from windlass.record.manifest import FOLDER_MANIFEST
from windlass.train.checkpoint.files import Files

__all__ = ["Draft", "begin_draft", "drop", "recover", "sweep"]

_SAVING, _REPLACED, _DROPPED = ".saving", ".replaced", ".dropped"


@dataclass(slots=True, kw_only=True)
class Draft:
    """Checkpoint that is being written.

    Attributes:
        parent: folder of the checkpoints.
        name: final name, `step-N`.
        token: hidden name of its folder; in a bucket, of an object that marks it.
        files: where its files are written.
    """

    parent: Files
    name: str
    token: str
    files: Files
    _lock: int | None = field(default=None)

    @classmethod
    def of(cls, parent: Files, name: str, token: str) -> Draft:
        """Return the draft for a token created by rank 0."""
        files = parent.at(token if parent.can_rename else name)
        return cls(parent=parent, name=name, token=token, files=files)

    def begin(self) -> None:
        """Create the draft's folder and lock it against `sweep`.

        Call this on rank 0, before any process writes.
        """
        if self.parent.can_rename:
            os.makedirs(self.files.path)
            self._lock = _hold(self.files.path)
        else:
            with self.parent.create(self.token) as file:
                file.write(self.name.encode())
            self.files.remove(FOLDER_MANIFEST)
            self.parent.remove(self.name)

    def commit(self, marker: bytes) -> None:
        """Write the marker and rename the checkpoint to its final name."""
        with self.files.create(FOLDER_MANIFEST) as file:
            file.write(marker)
        if self.parent.can_rename:
            self.files.sync(is_deep=True)
            aside = self.token.replace(_SAVING, _REPLACED, 1)
            with contextlib.suppress(FileNotFoundError):
                self.parent.rename(self.name, aside)
            self.parent.rename(self.token, self.name)
            self.parent.sync()
            self.parent.remove(aside)
        else:
            self.parent.remove(self.token)
        self._let_go()

    def discard(self) -> None:
        """Remove the draft and all its files."""
        self.parent.remove(self.name if not self.parent.can_rename else self.token)
        self.parent.remove(self.token)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def begin_draft(parent: Files, name: str, owner: str) -> Draft:
    """Begin writing a checkpoint. Call this on rank 0."""
    draft = Draft.of(parent, name, f"{_SAVING}-{owner}-{os.urandom(4).hex()}-{name}")
    draft.begin()
    return draft


def drop(parent: Files, name: str, owner: str) -> None:
    """Remove a checkpoint, which becomes invalid before its files are deleted. Idempotent."""
    aside = f"{_DROPPED}-{owner}-{os.urandom(4).hex()}-{name}"
    if parent.can_rename:
        try:
            parent.rename(name, aside)
        except FileNotFoundError:
            return
    else:
        with parent.create(aside) as file:
            file.write(name.encode())
        parent.at(name).remove(FOLDER_MANIFEST)
        parent.remove(name)
    parent.remove(aside)


def sweep(parent: Files, owner: str) -> list[str]:
    """Remove the files of this owner's saves that were killed; return their hidden names.

    Keeps other owners' drafts, and drafts locked by a running process on this machine.
    """
    recover(parent, owner)
    removed = []
    for name, _, final in _hidden(parent, owner):
        if parent.can_rename and not _sweep_folder(parent, name):
            continue
        if not parent.can_rename:
            _sweep_objects(parent, name, final)
        removed.append(name)
    return removed


def recover(parent: Files, owner: str) -> None:
    """Restore a checkpoint if its replacement was killed between two renames."""
    for name, kind, final in _hidden(parent, owner) if parent.can_rename else []:
        if kind == _REPLACED and FOLDER_MANIFEST in parent.at(name).names() and final not in parent.names():
            parent.rename(name, final)
            parent.sync()


def _hidden(parent: Files, owner: str) -> list[tuple[str, str, str]]:
    """Return (name, kind, final name) for each of this owner's hidden entries."""
    found = []
    for name in parent.names():
        kind, _, rest = name.partition("-")
        whose, _, rest = rest.partition("-")
        final = rest.partition("-")[2]
        if kind in (_SAVING, _REPLACED, _DROPPED) and whose == owner and final:
            found.append((name, kind, final))
    return found


def _sweep_folder(parent: Files, name: str) -> bool:
    lock = _hold(parent.at(name).path)
    if lock is None:
        return False
    try:
        parent.remove(name)
    finally:
        os.close(lock)
    return True


def _sweep_objects(parent: Files, name: str, final: str) -> None:
    if FOLDER_MANIFEST not in parent.at(final).names():
        parent.remove(final)
    parent.remove(name)


def _hold(folder: str) -> int | None:
    """Lock a folder until this process ends.

    Returns None if the folder no longer exists or another process has locked it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a network file system without locks: rely on the owner's name
        return descriptor
    return descriptor
