"""Build a folder once, at a path that is known before, however many machines ask for it.

    <place>/               the thing itself; `.ready` in it was written last
    <place>.lock           held while building
    <place>.failed         what the last build said when it failed
    .<name>.<generation>/  being built; renamed to <place> when it is whole
    .gone.<generation>/    being deleted

A killed builder leaves a generation that nobody takes for the whole. Where the file system has no locks, two builders
may work side by side: the first to rename wins.
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
    """A finished folder: what its builder noted, and whether it was there already."""

    folder: Path
    notes: Mapping[str, object]
    is_hit: bool


def beside(place: Path, suffix: str) -> Path:
    """A file that belongs to `place`, such as its `.lock`, `.log` or `.failed`."""
    return place.with_name(place.name + suffix)


def find_ready(place: Path) -> Ready | None:
    """The finished folder at `place`, or None; the file that its notes name as `proof` must still be there."""
    try:
        notes = read_json(place / READY)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(notes, dict) or not (place / str(notes.get("proof", "."))).exists():
        return None
    with contextlib.suppress(OSError):  # it may be another user's; the time only tells `windlass gc` that it is used
        os.utime(str(place / READY))
    return Ready(place, notes, True)


def is_being_built(place: Path) -> bool:
    """Whether some process holds the lock of `place`; False where nobody can know."""
    try:
        return is_locked(beside(place, ".lock"))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise


def build_once(place: Path, build: Callable[[Path], Mapping[str, object]], log: Callable[[str], None]) -> Ready:
    """The finished folder at `place`; built when it is not there. Blocks while another process builds it.

    Args:
        build: fills the folder it is given (with a path of its own) and returns notes; a raise leaves only `.failed`.
    """
    found = find_ready(place)
    if found is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionError(
            f"cannot make the folder {place.parent}: {error.strerror}",
            hint="let `fs.shared` of the site's profile name a folder that you may write",
            code="cache-unwritable",
        ) from error
    with _alone(place, log) as is_alone:
        found = find_ready(place)
        if found is not None:
            return found
        if is_alone:
            _clear(place)
        return _build(place, build)


def remove_built(place: Path, used_at: float) -> bool:
    """Take a finished folder away, and what belongs to it but its lock; False where it was used since `used_at`.

    Blocks while somebody builds it; idempotent.
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
        told = error if isinstance(error, WindlassError) else None
        message = told.message if told else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # a full disk: whoever waits sees that nobody builds any more
            write_json(beside(place, ".failed"), {"message": message, "hint": told.hint if told else ""})
        raise
    _put(folder, place)
    _take_right_to_write(str(place))  # only now: a folder that may not be written cannot be renamed everywhere
    return Ready(place, notes, False)


@contextlib.contextmanager
def _alone(place: Path, log: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of `place`, and say whether there are locks here at all."""
    path = beside(place, ".lock")
    path.touch()
    try:
        is_held = is_locked(path)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log(f"{place.parent} has no file locks: another build of {place.name[:12]} would not be noticed")
        yield False
        return
    if is_held:
        log(f"waiting for another process that builds {place.name[:12]}")
    with lock(path):
        yield True


def _put(folder: Path, place: Path) -> None:
    """Give a whole folder its name; what is there is broken, or another builder was quicker."""
    try:
        os.rename(str(folder), str(place))
    except OSError:
        if find_ready(place) is not None:
            _remove(folder)
            return
        _remove(place)
        os.rename(str(folder), str(place))


def _clear(place: Path) -> None:
    """Remove what killed builders left, and a folder that is no longer whole."""
    for entry in os.listdir(str(place.parent)):
        if entry.startswith((f".{place.name}.", ".gone.")):
            _remove(place.with_name(entry))
    if place.exists():
        _remove(place)


def _remove(folder: Path) -> None:
    """Take the name away first: a process may still have files open, or an orphan may still write."""
    gone = folder.with_name(f".gone.{new_token()[:12]}")
    try:
        os.rename(str(folder), str(gone))
    except FileNotFoundError:
        return
    for root, folders, _ in os.walk(str(gone)):
        for each in [root, *(os.path.join(root, name) for name in folders)]:
            if not os.path.islink(each):
                os.chmod(each, stat.S_IRWXU)
    shutil.rmtree(str(gone), ignore_errors=True)  # what is left now goes at the next build


def _freeze(folder: Path) -> None:
    """Take the right to write from everything in a folder; files that a cache shares keep their mode."""
    for root, folders, names in os.walk(str(folder), topdown=False):
        for name in (*names, *folders):
            _take_right_to_write(os.path.join(root, name))


def _take_right_to_write(path: str) -> None:
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~0o222)
