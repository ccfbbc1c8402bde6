"""One trainer at a time in a folder of checkpoints: a lock that dies with the process that holds it."""

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
"""In the folder of checkpoints; stays there, and says who held it last."""

_WAIT_S, _WAIT_FOR_OWN_S, _PAUSE_S = 5.0, 60.0, 0.1
"""For a process that is leaving. An attempt of the same task may be saving still, on another machine."""

_held: set[int] = set()


@contextlib.contextmanager
def sole_trainer(store: CheckpointStore | None, world: World) -> Iterator[None]:
    """Be the only trainer that writes to a store's folder. Collective as it begins; only rank 0 holds the lock.

    Buckets, and stores of other kinds, have no locks: there nobody is kept out.

    Raises:
        PreconditionError: on every process, when another trainer is at work there.
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
            raise error or PreconditionError(f"rank 0 cannot have {store.path} to itself", code="checkpoint-folder")
    try:
        yield
    finally:
        if descriptor is not None:
            _held.discard(descriptor)
            os.close(descriptor)


def _take(folder: Path) -> int | None:
    """The lock, held until it is closed; None where the file system has none."""
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PreconditionError(
            f"checkpoints cannot be written to {folder}: {error.strerror or error}",
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
    """Wait a little for a holder that is leaving; False where training goes on without the lock, which is told."""
    began_at, is_told = time.monotonic(), False
    while True:
        try:
            take_lock(descriptor, path)
            return True
        except PreconditionError as error:  # a file system without locks
            _tell(f"{error.message}; nobody keeps a second trainer out of this folder")
            return False
        except BlockingIOError:
            holder = _holder(path)
        waited_s, is_own = time.monotonic() - began_at, _is_of_this_task(holder)
        if waited_s >= (_WAIT_FOR_OWN_S if is_own else _WAIT_S):
            if not is_own:
                raise _busy(path.parent, holder)
            _tell(
                f"{_named(holder)}, of this task, has not let go of {path.parent} yet; going on, for this attempt counts"
            )
            return False
        if not is_told:
            is_told = True
            _tell(f"waiting for {_named(holder)} to leave {path.parent}")
        time.sleep(_PAUSE_S)


def _busy(folder: Path, holder: Mapping[str, Any]) -> PreconditionError:
    return PreconditionError(
        f"{folder} is in use: {_named(holder)} trains there",
        hint="set `checkpoint.folder` to another folder, or end that process first",
        code="checkpoint-folder-busy",
    )


def _sign(descriptor: int) -> None:
    """Say in the lock file who holds it."""
    place = report.place()
    signature = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    text = json.dumps({**signature, "run": place.run, "task": place.task, "rank": place.global_rank}) + "\n"
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _holder(path: Path) -> Mapping[str, Any]:
    """What the holder wrote; empty while it has not."""
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
    """Whether windlass started it in this process's stead before: then it is on its way out, or fenced off."""
    place = report.place()
    mine = {"run": place.run, "task": place.task, "rank": place.global_rank}
    return bool(place.run) and all(holder.get(key) == value for key, value in mine.items())


def _tell(text: str) -> None:
    sys.stderr.write(f"windlass: {text}\n")
    sys.stderr.flush()


def _forget_in_child() -> None:
    """A forked child that outlives the trainer must not hold its lock."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)
