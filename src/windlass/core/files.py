"""Files that must be complete: atomic writes, locks, digests, trees."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.tree import walk

__all__ = [
    "check_locks",
    "disk_bytes",
    "file_system",
    "fsync_directory",
    "is_locked",
    "lock",
    "refresh_folder",
    "sha256_file",
    "take_lock",
    "write_atomic",
    "write_json",
    "write_new",
]

_LOCK_PAUSE_S = 0.02
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def write_atomic(
    path: Path, content: bytes, *, mode: int = 0o644, is_durable: bool = True, syncs_folder: bool = True
) -> None:
    """Write a file atomically: write a temporary file in the same folder, fsync it, rename it.

    Args:
        mode: permissions of the file, from its creation on.
        is_durable: whether the file must survive a power cut (costs two fsyncs).
        syncs_folder: False if one `fsync_directory` after several files makes all their names durable.
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
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(temporary))
        if isinstance(error, OSError) and error.filename is None:  # the error of a full disk has no file name
            error.filename = str(path)
        raise
    if is_durable and syncs_folder:
        fsync_directory(path.parent)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file unless it exists; return whether it was written. Atomic across machines, and durable."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(str(temporary), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(str(temporary), str(path))
        except FileExistsError:
            if not _has_second_name(temporary):
                return False
    except OSError as error:
        if error.filename is None:  # the error of a full disk has no file name
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(temporary))
    fsync_directory(path.parent)
    return True


def _has_second_name(path: Path) -> bool:
    """Return whether a link was created even though the call failed, since a network file system may repeat a call.

    The file is opened, because this machine may have cached its attributes.
    """
    descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_nlink > 1
    finally:
        os.close(descriptor)


def refresh_folder(folder: Path, probe: str) -> None:
    """Change a folder so that the next listing of it does not come from a cache.

    Source: nfs(5), "Directory entry caching": a client may use a cached listing for a minute, unless it detects that
    the folder changed; it always detects its own changes.

    Args:
        probe: hidden name in the folder that only the caller uses.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(str(folder / probe))
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(str(folder / probe))


def fsync_directory(path: Path) -> None:
    """Sync a folder to disk, so that the names in it survive a power cut."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(
    path: Path, value: object, *, mode: int = 0o644, is_durable: bool = True, syncs_folder: bool = True
) -> None:
    """Write `value` atomically as sorted, indented JSON; see `write_atomic`."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomic(path, text.encode() + b"\n", mode=mode, is_durable=is_durable, syncs_folder=syncs_folder)


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's content, read in pieces of 1 MiB."""
    import hashlib  # lazy: OpenSSL takes 4 ms to import, and the guard computes no digests

    digest = hashlib.sha256()
    with open(str(path), "rb") as file:
        while True:
            piece = file.read(1 << 20)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)


def take_lock(descriptor: int, path: Path, *, waits: bool = False) -> None:
    """Lock an open file exclusively; the lock is released when all copies of the descriptor are closed.

    Raises:
        BlockingIOError: another process holds the lock, and `waits` is False.
        PreconditionError: the file system has no locks (`no-file-locks`).
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise PreconditionError(
            f"the file system of {path} has no file locks: {os.strerror(error.errno)}",
            hint="use a folder on another file system, or ask the site to mount this one with locks (Lustre: flock)",
            code="no-file-locks",
        ) from error


def check_locks(folder: Path) -> None:
    """Check that files in a folder can be locked; leaves no file behind.

    Raises:
        PreconditionError: the file system has no locks (`no-file-locks`).
        OSError: the folder is not writable.
    """
    path = folder / f".lock.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        take_lock(descriptor, folder)
    finally:
        os.unlink(str(path))
        os.close(descriptor)


@contextlib.contextmanager
def lock(path: Path, *, timeout_s: float | None = None) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which is created if missing; the lock is released if the process dies.

    Args:
        timeout_s: time limit for waiting for another holder; None if there is no limit.

    Raises:
        WaitTimeoutError: another process still held it after that time.
        PreconditionError: the file system has no locks (`no-file-locks`).
    """
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if timeout_s is None:
            take_lock(descriptor, path, waits=True)
        else:
            _lock_within(descriptor, path, timeout_s)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, path: Path, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while True:
        try:
            take_lock(descriptor, path)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise WaitTimeoutError(
                    f"another process has held the lock {path} for {timeout_s:g} s",
                    hint=f"`fuser {path}` shows that process; try again when it has ended",
                ) from None
            time.sleep(_LOCK_PAUSE_S)


def is_locked(path: Path) -> bool:
    """Return whether any process holds the lock on `path`."""
    try:
        descriptor = os.open(str(path), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        take_lock(descriptor, path)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def disk_bytes(path: Path) -> int:
    """Return how many bytes a file or a tree uses on disk; a file with several hard links counts once."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_blocks * 512
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def file_system(path: Path) -> str:
    """Return the type of the file system that contains a path; source: proc(5), /proc/self/mounts."""
    path = path.resolve()
    best, kind = -1, "unknown"
    for line in Path("/proc/self/mounts").read_text(errors="replace").split("\n"):
        fields = line.split(" ")
        if len(fields) > 2:
            point = Path(fields[1].replace("\\040", " "))
            if path.is_relative_to(point) and len(point.parts) >= best:  # the later of two mounts hides the other
                best, kind = len(point.parts), fields[2]
    return kind
