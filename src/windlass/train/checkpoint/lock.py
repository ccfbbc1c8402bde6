"""Lock on a checkpoint folder, released when the process that holds it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import report
from windlass.core.errors import PreconditionError
from windlass.core.files import take_lock
from windlass.core.json_text import read_json
from windlass.train.checkpoint.store import FolderStore

if TYPE_CHECKING:
    from windlass.train.checkpoint.protocol import CheckpointStore
    from windlass.train.parallel.world import World

__all__ = ["LOCK_FILE", "sole_trainer"]

LOCK_FILE = ".trainer.lock"
"""Lock file in the checkpoint folder; never removed; contains its last holder."""

_WAIT_S, _WAIT_FOR_OWN_S, _PAUSE_S = 5.0, 60.0, 0.1
"""Time to wait for a process that is ending: an attempt of the same task may still be saving on another machine."""

_held: set[int] = set()


@contextlib.contextmanager
def sole_trainer(store: CheckpointStore | None, world: World) -> Iterator[None]:
    """Lock a store's folder against a second trainer. Collective on entry; only rank 0 holds the lock.

    Buckets and other stores have no locks: a second trainer is not detected there.

    Raises:
        PreconditionError: another trainer uses the folder; raised on every process.
    """
    descriptor: int | None = None
    error: PreconditionError | None = None
    if isinstance(store, FolderStore) and store.files.can_rename:
        if world.is_main:
            try:
                descriptor = _take(Path(store.path))
            except PreconditionError as caught:
                error = caught
        if world.sum_on_host([float(error is not None)])[0] > 0:
            raise error or PreconditionError(f"rank 0 cannot lock {store.path}", code="checkpoint-folder")
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(descriptor)
            os.close(descriptor)


def _take(folder: Path) -> int | None:
    """Take the lock and return its descriptor, or None if the file system has no locks.

    The lock is held until the descriptor is closed.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PreconditionError(
            f"cannot write checkpoints to {folder}: {error.strerror or error}",
            hint="set `checkpoint.folder`, or `no_checkpoints=true`",
            code="checkpoint-folder",
        ) from error
    try:
        if _lock_in_time(descriptor, path):
            _sign(descriptor)
            _held.add(descriptor)
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_in_time(descriptor: int, path: Path) -> bool:
    """Take the lock, waiting briefly for a holder that is ending.

    If that is not possible but training may continue, print a message and return False.
    """
    began_at, is_told = time.monotonic(), False
    while True:
        try:
            take_lock(descriptor, path)
            return True
        except PreconditionError as error:  # the file system has no locks
            _tell(f"{error.message}; a second trainer in this folder will not be detected")
            return False
        except BlockingIOError:
            holder = _holder(path)
        waited_s, is_own = time.monotonic() - began_at, _is_of_this_task(holder)
        if waited_s >= (_WAIT_FOR_OWN_S if is_own else _WAIT_S):
            if not is_own:
                raise _busy(path.parent, holder)
            _tell(
                f"{_named(holder)}, an earlier attempt of this task, still holds {path.parent}; continuing without the lock"
            )
            return False
        if not is_told:
            is_told = True
            _tell(f"waiting for {_named(holder)} to release {path.parent}")
        time.sleep(_PAUSE_S)


def _busy(folder: Path, holder: Mapping[str, Any]) -> PreconditionError:
    return PreconditionError(
        f"{folder} is in use by {_named(holder)}",
        hint="set `checkpoint.folder` to another folder, or stop that process first",
        code="in-use",
    )


def _sign(descriptor: int) -> None:
    """Write this process's identity into the lock file."""
    place = report.place()
    signature = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    text = json.dumps({**signature, "run": place.run, "task": place.task, "rank": place.global_rank}) + "\n"
    with contextlib.suppress(OSError):  # the lock is held even if the disk is full
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _holder(path: Path) -> Mapping[str, Any]:
    """Return the identity of the holder, which is empty until written."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(holder: Mapping[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')} (since {holder.get('since')})"


def _is_of_this_task(holder: Mapping[str, Any]) -> bool:
    """Return whether the holder is an earlier attempt at the same task, which is ending or fenced off."""
    place = report.place()
    mine = {"run": place.run, "task": place.task, "rank": place.global_rank}
    return bool(place.run) and all(holder.get(key) == value for key, value in mine.items())


def _tell(text: str) -> None:
    sys.stderr.write(f"windlass: {text}\n")
    sys.stderr.flush()


def _forget_in_child() -> None:
    """Release the lock in forked children, which may outlive the trainer."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)
