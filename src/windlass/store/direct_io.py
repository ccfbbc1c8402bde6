"""Direct I/O (O_DIRECT) of large files, with digests.

I/O through the page cache costs page allocation and an extra copy, and evicts files that runs read. Files that are
already cached are read from the cache; without O_DIRECT, all I/O uses the cache.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import random
import threading

from windlass.store.reading import read_through

__all__ = ["CHUNK_BYTES", "bypass_cache", "copy_large", "digest_stored"]

CHUNK_BYTES = 4 << 20  # several concurrent requests to the disk
_PAGE_BYTES = 4096
_NUM_PROBES = 4
_DIRECT = getattr(os, "O_DIRECT", 0)  # only on Linux
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_own = threading.local()


def digest_stored(path: str) -> tuple[str, int]:
    """Return the (sha256, size) of a file that does not change. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size >= CHUNK_BYTES and not _is_cached(descriptor, size) and bypass_cache(descriptor):
            return _in_chunks(descriptor, None)
        return read_through(descriptor)
    finally:
        os.close(descriptor)


def copy_large(given: int, made: int, size_bytes: int) -> tuple[str, int]:
    """Copy an open file to `made`, and return its (sha256, size).

    Args:
        made: a new file, after `bypass_cache`.
        size_bytes: size of the file from `fstat`; at least one chunk.
    """
    if not _is_cached(given, size_bytes):
        bypass_cache(given)
    return _in_chunks(given, made)


def _in_chunks(given: int, made: int | None) -> tuple[str, int]:
    """Hash a chunk while the previous one is written and the next one is read; return the (sha256, size)."""
    from concurrent.futures import ThreadPoolExecutor  # lazy: imports `logging`; most runs pin no data

    digest, position, num_held = hashlib.sha256(), 0, 0
    view, other = _chunks()
    with ThreadPoolExecutor(1) as disk:  # leaving the block waits for pending requests
        size = _read(given, view, 0)
        while size:
            coming = disk.submit(_exchange, given, made, other, num_held, position, size)
            digest.update(view[:size])
            view, other, num_held, position, size = other, view, size, position + size, coming.result()
    if made is not None:
        _write(made, other[:num_held], position - num_held)
    return digest.hexdigest(), position


def _exchange(given: int, made: int | None, view: memoryview, num_held: int, position: int, size: int) -> int:
    """Write a buffer, whose bytes end at `position`, then refill it with bytes from `size` bytes further on."""
    if made is not None:
        _write(made, view[:num_held], position - num_held)
    return _read(given, view, position + size)


def bypass_cache(descriptor: int, *, is_on: bool = True) -> bool:
    """Switch O_DIRECT on or off for an open file; return False if that is not supported."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT if is_on else flags & ~_DIRECT)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return _DIRECT != 0


def _is_cached(descriptor: int, size_bytes: int) -> bool:
    """Return whether a file has pages in the page cache; True if unknown."""
    if not _DIRECT:
        return True
    page = bytearray(1)
    try:
        for _ in range(_NUM_PROBES):  # random pages, because probing a page loads it
            os.preadv(descriptor, [page], random.randrange(size_bytes), os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    return True


def _chunks() -> tuple[memoryview, memoryview]:
    """Return this thread's two page-aligned buffers, which are reused."""
    try:
        found: tuple[memoryview, memoryview] = _own.chunks
    except AttributeError:
        found = _own.chunks = (memoryview(mmap.mmap(-1, CHUNK_BYTES)), memoryview(mmap.mmap(-1, CHUNK_BYTES)))
    return found


def _read(descriptor: int, view: memoryview, position: int) -> int:
    """Read until the view is full or the file ends."""
    size = 0
    while size < len(view):
        try:
            count = os.preadv(descriptor, [view[size:]], position + size)
        except OSError as error:
            _give_up_direct(descriptor, error)
            continue
        if not count:
            break
        size += count
    return size


def _write(made: int, view: memoryview, position: int) -> None:
    while view:
        num_whole = len(view) // _PAGE_BYTES * _PAGE_BYTES
        try:
            count = os.pwrite(made, view[: num_whole or len(view)], position)
        except OSError as error:
            _give_up_direct(made, error)
            continue
        view, position = view[count:], position + count


def _give_up_direct(descriptor: int, error: OSError) -> None:
    """After an error that O_DIRECT causes, continue with the page cache; raise other errors."""
    if error.errno not in _REFUSED or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT:
        raise error
    bypass_cache(descriptor, is_on=False)
