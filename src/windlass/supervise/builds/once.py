"""Build of a folder at a known path, done exactly once across any number of machines.

    <place>/               the finished folder; `.ready` in it was written last
    <place>.lock           held while building
    <place>.failed         the message of the last failed build
    .<name>.<generation>/  being built; renamed to <place> when complete
    .gone.<generation>/    being deleted

A killed builder leaves a generation folder, which never counts as the finished folder. On a file system without locks two
builders may work concurrently: the first to rename wins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import is_locked, lock, write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token

__all__ = ["READY", "Ready", "beside", "build_once", "find_ready", "is_being_built", "remove_built"]

READY = ".ready"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class Ready:
    """Finished folder: its path, its builder's notes, and whether it existed already."""

    folder: Path
    notes: Mapping[str, object]
    is_hit: bool


def beside(place: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to `place`, such as its `.lock`, `.log` or `.failed`."""
    return place.with_name(place.name + suffix)


def find_ready(place: Path) -> Ready | None:
    """Return the finished folder at `place`; None if it is missing, or the `proof` file in its notes is."""
    try:
        notes = read_json(place / READY)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(notes, dict) or not (place / str(notes.get("proof", "."))).exists():
        return None
    with contextlib.suppress(
        OSError
    ):  # it may belong to another user; the time only marks it as used for `windlass gc`
        os.utime(str(place / READY))
    return Ready(place, notes, True)


def is_being_built(place: Path) -> bool:
    """Return whether a process holds the lock of `place`; False if the file system has no locks."""
    try:
        return is_locked(beside(place, ".lock"))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise


def build_once(place: Path, build: Callable[[Path], Mapping[str, object]], log: Callable[[str], None]) -> Ready:
    """Return the finished folder at `place`, building it if necessary. Blocks while another process builds it.

    Args:
        build: fills the folder passed to it (a unique path) and returns notes; an exception leaves only `.failed`.
    """
    found = find_ready(place)
    if found is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionError(
            f"cannot create the folder {place.parent}: {error.strerror}",
            hint="set `fs.shared` in the site profile to a folder that you can write to",
            code="not-writable",
        ) from error
    with _alone(place, log) as is_alone:
        found = find_ready(place)
        if found is not None:
            return found
        if is_alone:
            _clear(place)
        return _build(place, build)


def remove_built(place: Path, used_at: float) -> bool:
    """Remove a finished folder and the files beside it, except the lock; return False if it was used after `used_at`.

    Blocks while another process builds it; idempotent.
    """
    with _alone(place, lambda _: None):
        with contextlib.suppress(FileNotFoundError):
            if (place / READY).stat().st_mtime != used_at:
                return False
        _remove(place)
        for suffix in (".log", ".failed", ".tar", ".recipe.json"):
            beside(place, suffix).unlink(missing_ok=True)
    return True


def _build(place: Path, build: Callable[[Path], Mapping[str, object]]) -> Ready:
    folder = place.with_name(f".{place.name}.{new_token()[:12]}")
    beside(place, ".failed").unlink(missing_ok=True)
    try:
        folder.mkdir()
        notes = dict(build(folder))
        write_json(folder / READY, notes)
        _freeze(folder)
    except BaseException as error:
        _remove(folder)
        known = error if isinstance(error, WindlassError) else None
        message = known.message if known else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # on a full disk, waiting processes see that the build ended
            write_json(beside(place, ".failed"), {"message": message, "hint": known.hint if known else ""})
        raise
    _put(folder, place)
    _make_read_only(str(place))  # after the rename: some file systems cannot rename a read-only folder
    return Ready(place, notes, False)


@contextlib.contextmanager
def _alone(place: Path, log: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of `place`; yield False if the file system has no locks."""
    path = beside(place, ".lock")
    path.touch()
    try:
        is_held = is_locked(path)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log(f"{place.parent} has no file locks: a concurrent build of {place.name[:12]} is not detected")
        yield False
        return
    if is_held:
        log(f"waiting for another process to finish building {place.name[:12]}")
    with lock(path):
        yield True


def _put(folder: Path, place: Path) -> None:
    """Rename a finished folder to its final path, unless another builder was faster."""
    try:
        os.rename(str(folder), str(place))
    except OSError:
        if find_ready(place) is not None:
            _remove(folder)
            return
        _remove(place)
        os.rename(str(folder), str(place))


def _clear(place: Path) -> None:
    """Remove what killed builders left behind, and a damaged folder."""
    for entry in os.listdir(str(place.parent)):
        if entry.startswith((f".{place.name}.", ".gone.")):
            _remove(place.with_name(entry))
    if place.exists():
        _remove(place)


def _remove(folder: Path) -> None:
    """Rename a folder, then delete it: processes may have its files open, or orphans may still write to it."""
    gone = folder.with_name(f".gone.{new_token()[:12]}")
    try:
        os.rename(str(folder), str(gone))
    except FileNotFoundError:
        return
    for root, folders, _ in os.walk(str(gone)):
        for each in [root, *(os.path.join(root, name) for name in folders)]:
            if not os.path.islink(each):
                os.chmod(each, stat.S_IRWXU)
    shutil.rmtree(str(gone), ignore_errors=True)  # the next build removes the rest


def _freeze(folder: Path) -> None:
    """Make everything in a folder read-only, except files shared with a cache."""
    for root, folders, names in os.walk(str(folder), topdown=False):
        for name in (*names, *folders):
            _make_read_only(os.path.join(root, name))


def _make_read_only(path: str) -> None:
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~0o222)
