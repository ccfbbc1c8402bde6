"""The object files of a store on this machine: named by the sha256 of their bytes, read-only, whole or not there.

A file is written under a temporary name, brought to the disk together with others, and then renamed: whatever dies when,
a name in `objects` stands for exactly its bytes. An executable file is an object of its own (`<sha256>.x`), because hard
links share one mode.
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
from windlass.store.direct import CHUNK_BYTES, bypass_cache, copy_large, digest_stored
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
    """The folder of objects. Safe from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = f"{root}/"

    def path(self, sha256: str, *, is_executable: bool = False) -> Path:
        """Where an object lies, or would."""
        return Path(self.name(sha256, is_executable=is_executable))

    def name(self, sha256: str, *, is_executable: bool = False) -> str:
        """`path` as text: among many small files making paths costs more than what is done with them."""
        return f"{self._prefix}{sha256[:2]}/{sha256}{'.x' if is_executable else ''}"

    def find(self, sha256: str, size_bytes: int) -> Path | None:
        """An object in either mode whose size fits; its bytes are not read."""
        for is_executable in (False, True):
            path = self.path(sha256, is_executable=is_executable)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size == size_bytes:
                    return path
        return None

    def check(self, path: Path | str, sha256: str) -> bool:
        """Whether an object's bytes are what its name says; reads all of them."""
        return digest_stored(os.fspath(path))[0] == sha256

    def walk(self) -> Iterator[os.DirEntry[str]]:
        """Every object file."""
        with contextlib.suppress(FileNotFoundError):
            for shard in os.scandir(self.root):
                yield from os.scandir(shard.path)

    def link(self, path: Path | str, target: Path | str, *, is_executable: bool) -> None:
        """Make `target` the same file as an object, or where that cannot be a copy that shares its blocks, or a copy."""
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
    """What one process brings into a store: many files become durable with few waits for the disk.

    Nothing is an object before `flush` returns; leaving the `with` block flushes, and removes what was not finished.

    Args:
        refuse: gets the new bytes so far, and raises where there is no room for them.
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
            self.flush()  # after a failure too: what is whole need not come again
        finally:
            import shutil  # lazy: a plan needs none of it

            shutil.rmtree(self._folder, ignore_errors=True)

    def temporary(self) -> Path:
        """A name to write a file under, for `take`."""
        return Path(self._new_name())

    def _new_name(self) -> str:
        with self._mutex:
            self._number += 1
            return f"{self._prefix}{self._number}"

    def copy(self, source: Path | str, mode: int, *, expected: str = "") -> str:
        """Bring a file in, read once; returns its digest. A copy shares blocks with its source where it can.

        Args:
            expected: take nothing in that has another digest.
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
        """Bring in what is in memory; nothing is written where it is there already."""
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
            self._coming.discard(target)  # it does not come: another try may bring it
            raise
        self._accept(temporary, target, len(content))
        return sha256

    def _stream(self, given: int, mode: int, expected: str) -> str:
        is_executable = bool(mode & 0o100)
        temporary = self._new_name()
        made = _open_new(temporary, is_executable=is_executable)
        try:
            self._can_clone = self._can_clone and clone(given, made)
            if self._can_clone:  # digested from the copy: the source may change meanwhile
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
        """Accept a finished file whose bytes are known to be those of `sha256`."""
        target = self._objects.name(sha256, is_executable=is_executable)
        if not self._claims(target, size_bytes):
            temporary.unlink()
            return
        os.chmod(temporary, 0o555 if is_executable else 0o444)
        self._accept(os.fspath(temporary), target, size_bytes)

    def _claims(self, target: str, size_bytes: int) -> bool:
        """Whether an object is neither there nor on its way; from now on it is."""
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
        """Make everything taken so far durable, and objects. After one failure it fails again: some may never come."""
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
    """Make an empty file share the blocks of another; False where the file system cannot."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise
    return True


def no_space(error: OSError, root: Path | str) -> PreconditionError | None:
    """The error for a full disk; None where something else went wrong."""
    if error.errno not in _FULL:
        return None
    return PreconditionError(
        f"no space left for the store {root}; everything that was finished stays, and is not transferred again",
        hint="`windlass data gc` frees what nothing needs; WINDLASS_STORE=/other/folder puts the store elsewhere",
        code="store-full",
    )


def _open_new(name: str, *, is_executable: bool) -> int:
    """A new file that is read-only for all who open it later, whatever the umask."""
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
    """syncfs(2): one wait for many files; False where the C library has none."""
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
