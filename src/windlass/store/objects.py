"""Object files of a local store: named by sha256, read-only, always complete.

A file is written under a temporary name, synced in a batch and then renamed, so that after any crash an object has
exactly the bytes that its name states. An executable file is a separate object (`<sha256>.x`), because hard links
share one mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory
from windlass.store.direct_io import CHUNK_BYTES, bypass_cache, copy_large, digest_stored
from windlass.store.reading import buffer, read_through, write_all

__all__ = ["Inbox", "Objects", "clone", "no_space"]

_BATCH_FILES = 4096
_BATCH_BYTES = 256 << 20
_FEW_FILES = 16
_FICLONE = 0x40049409  # linux/fs.h; ioctl_ficlone(2)
_CANNOT_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS, errno.EBADF)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Objects:
    """Folder with objects. Safe for several threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = f"{root}/"

    def path(self, sha256: str, *, is_executable: bool = False) -> Path:
        """Return the path of an object."""
        return Path(self.name(sha256, is_executable=is_executable))

    def name(self, sha256: str, *, is_executable: bool = False) -> str:
        """Return `path` as text; Path objects would dominate the cost of small files."""
        return f"{self._prefix}{sha256[:2]}/{sha256}{'.x' if is_executable else ''}"

    def find(self, sha256: str, size_bytes: int) -> Path | None:
        """Return the path of an object with the right size, in either mode, or None, without reading it."""
        for is_executable in (False, True):
            path = self.path(sha256, is_executable=is_executable)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size == size_bytes:
                    return path
        return None

    def check(self, path: Path | str, sha256: str) -> bool:
        """Return whether an object's bytes match its name. Reads all bytes."""
        return digest_stored(os.fspath(path))[0] == sha256

    def walk(self) -> Iterator[os.DirEntry[str]]:
        """Yield every object file."""
        with contextlib.suppress(FileNotFoundError):
            for shard in os.scandir(self.root):
                yield from os.scandir(shard.path)

    def link(self, path: Path | str, target: Path | str, *, is_executable: bool) -> None:
        """Hard-link, clone or copy an object to `target`, whichever works first."""
        try:
            os.link(path, target)
            return
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
        mode = 0o555 if is_executable else 0o444
        with open(path, "rb") as source, open(target, "xb") as copy:
            if not clone(source.fileno(), copy.fileno()):
                while os.sendfile(copy.fileno(), source.fileno(), None, 1 << 30):
                    pass
            os.fchmod(copy.fileno(), mode)


class Inbox:
    """Writer of objects for one process, which makes many files durable with few syncs.

    Files become objects in `flush`; leaving the `with` block flushes, and removes unfinished files.

    Args:
        refuse: called with the number of new bytes; raises if there is no space for them.
    """

    def __init__(self, objects: Objects, folder: Path, *, refuse: Callable[[int], None] | None = None) -> None:
        self._objects = objects
        self._refuse = refuse
        self._new_bytes = 0
        self._folder = folder / f"{os.getpid()}.{os.urandom(6).hex()}"
        self._prefix = f"{self._folder}/"
        self._pending: list[tuple[str, str]] = []
        self._pending_bytes = 0
        self._coming: set[str] = set()
        self._can_clone = True
        self._number = 0
        self._lost: BaseException | None = None
        self._mutex = threading.Lock()
        self._flushing = threading.Lock()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        try:
            self.flush()  # also after a failure: complete files are kept
        finally:
            import shutil  # lazy: not needed for a plan

            shutil.rmtree(self._folder, ignore_errors=True)

    def temporary(self) -> Path:
        """Return a path for writing a file to pass to `take`."""
        return Path(self._new_name())

    def _new_name(self) -> str:
        with self._mutex:
            self._number += 1
            return f"{self._prefix}{self._number}"

    def copy(self, source: Path | str, mode: int, *, expected: str = "") -> str:
        """Add a file and return its digest. The file is read once, and its blocks are shared if possible.

        Args:
            expected: do not add the file if its digest differs.
        """
        given = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            view = buffer()
            count = os.readv(given, [view])
            is_small = count < len(view) and not os.readv(given, [view[count:]])
            if is_small and not self._can_clone:
                return self._put(view[:count], mode, expected)
            os.lseek(given, 0, os.SEEK_SET)
            return self._stream(given, mode, expected)
        finally:
            os.close(given)

    def _put(self, content: memoryview, mode: int, expected: str) -> str:
        """Add content from memory, unless its object exists; return the digest."""
        sha256 = hashlib.sha256(content).hexdigest()
        is_executable = bool(mode & 0o100)
        target = self._objects.name(sha256, is_executable=is_executable)
        if (expected and sha256 != expected) or not self._claims(target, len(content)):
            return sha256
        try:
            temporary = self._new_name()
            made = _open_new(temporary, is_executable=is_executable)
            try:
                write_all(made, content)
            finally:
                os.close(made)
        except BaseException:
            self._coming.discard(target)  # another attempt can add it
            raise
        self._accept(temporary, target, len(content))
        return sha256

    def _stream(self, given: int, mode: int, expected: str) -> str:
        is_executable = bool(mode & 0o100)
        temporary = self._new_name()
        made = _open_new(temporary, is_executable=is_executable)
        try:
            self._can_clone = self._can_clone and clone(given, made)
            if self._can_clone:  # digest the copy: the source may change
                sha256, size = digest_stored(temporary)
            elif (size := os.fstat(given).st_size) >= CHUNK_BYTES and bypass_cache(made):
                sha256, size = copy_large(given, made, size)
            else:
                sha256, size = read_through(given, target=made)
        finally:
            os.close(made)
        target = self._objects.name(sha256, is_executable=is_executable)
        if (expected and sha256 != expected) or not self._claims(target, size):
            os.unlink(temporary)
        else:
            self._accept(temporary, target, size)
        return sha256

    def take(self, temporary: Path, sha256: str, size_bytes: int, *, is_executable: bool = False) -> None:
        """Add a finished file whose digest is known."""
        target = self._objects.name(sha256, is_executable=is_executable)
        if not self._claims(target, size_bytes):
            temporary.unlink()
            return
        os.chmod(temporary, 0o555 if is_executable else 0o444)
        self._accept(os.fspath(temporary), target, size_bytes)

    def _claims(self, target: str, size_bytes: int) -> bool:
        """Claim an object for writing; return False if the object exists or is being added."""
        with self._mutex:
            if target in self._coming:
                return False
            self._coming.add(target)
        return not _has(target, size_bytes)

    def _accept(self, temporary: str, target: str, size_bytes: int) -> None:
        with self._mutex:
            self._new_bytes += size_bytes
            if self._refuse is not None:
                self._refuse(self._new_bytes)
            self._pending.append((temporary, target))
            self._pending_bytes += size_bytes
            is_full = len(self._pending) >= _BATCH_FILES or self._pending_bytes >= _BATCH_BYTES
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Turn all added files into durable objects. After a failure, every later call fails too."""
        with self._flushing:
            if self._lost is not None:
                raise self._lost
            with self._mutex:
                batch, self._pending, self._pending_bytes = self._pending, [], 0
            try:
                self._publish(batch)
            except BaseException as error:
                self._lost = error
                raise

    def _publish(self, batch: list[tuple[str, str]]) -> None:
        if not batch:
            return
        _bring_to_disk([temporary for temporary, _ in batch], self._folder)
        shards = {Path(name) for name in {os.path.dirname(target) for _, target in batch}}
        for shard in shards:
            shard.mkdir(parents=True, exist_ok=True)
        for temporary, target in batch:
            os.replace(temporary, target)
        if len(shards) > _FEW_FILES and _sync_file_system(self._folder):
            return
        for shard in (*shards, self._objects.root):
            fsync_directory(shard)


def clone(source: int, target: int) -> bool:
    """Make an empty file share another file's blocks; return False if that is not supported."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise
    return True


def no_space(error: OSError, root: Path | str) -> PreconditionError | None:
    """Return the error for a full disk, or None for other errors."""
    if error.errno not in _FULL:
        return None
    return PreconditionError(
        f"no space left for the store {root}; finished files are kept and not transferred again",
        hint="remove unneeded data with `windlass data gc`, or move the store: WINDLASS_STORE=/other/folder",
        code="store-full",
    )


def _open_new(name: str, *, is_executable: bool) -> int:
    """Open a new file that is read-only when opened later, whatever the umask."""
    mode = 0o555 if is_executable else 0o444
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    if os.fstat(descriptor).st_mode & 0o777 != mode:
        os.fchmod(descriptor, mode)
    return descriptor


def _has(target: str, size_bytes: int) -> bool:
    try:
        return os.stat(target).st_size == size_bytes
    except FileNotFoundError:
        return False


def _bring_to_disk(paths: list[str], folder: Path) -> None:
    if len(paths) > _FEW_FILES and _sync_file_system(folder):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file_system(folder: Path) -> bool:
    """Sync a file system with syncfs(2); return False if the C library lacks it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if call(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)
    return True
