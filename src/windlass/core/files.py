"""The one door to files that must be whole: atomic writes, locks, digests, trees."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.core.errors import WaitTimeoutError

__all__ = ["fsync_directory", "is_locked", "lock", "read_json", "sha256_file", "write_atomic", "write_json"]

_LOCK_PAUSE_S = 0.02


def write_atomic(
    path: Path, content: bytes, *, mode: int = 0o644, is_durable: bool = True, syncs_folder: bool = True
) -> None:
    """Write a whole file or nothing: temporary file in the same folder, fsync, rename.

    Args:
        mode: permissions of the file from its first byte on.
        is_durable: also survive a power cut (costs two fsyncs).
        syncs_folder: False where one `fsync_directory` behind several files makes all their names durable.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        descriptor = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(str(temporary), str(path))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(temporary))
        raise
    if is_durable and syncs_folder:
        fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(
    path: Path, value: object, *, mode: int = 0o644, is_durable: bool = True, syncs_folder: bool = True
) -> None:
    """Write `value` as sorted, indented JSON, whole or not at all; see `write_atomic`."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomic(path, text.encode() + b"\n", mode=mode, is_durable=is_durable, syncs_folder=syncs_folder)


def read_json(path: Path) -> object:
    """The value of a JSON file."""
    return json.loads(path.read_bytes())


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's content, read in pieces of 1 MiB."""
    import hashlib  # lazy: OpenSSL takes 4 ms, and the guard digests nothing

    digest = hashlib.sha256()
    with open(str(path), "rb") as file:
        while True:
            piece = file.read(1 << 20)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)


@contextlib.contextmanager
def lock(path: Path, *, timeout_s: float | None = None) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if missing); freed when the process dies.

    Args:
        timeout_s: how long to wait for another holder; None: for ever.

    Raises:
        WaitTimeoutError: another process held it all that time.
    """
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if timeout_s is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            _lock_within(descriptor, path, timeout_s)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, path: Path, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise WaitTimeoutError(
                    f"another process has held the lock {path} for {timeout_s:g} s",
                    hint=f"`fuser {path}` names it; try again when it is done",
                ) from None
            time.sleep(_LOCK_PAUSE_S)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on `path` right now."""
    try:
        descriptor = os.open(str(path), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
