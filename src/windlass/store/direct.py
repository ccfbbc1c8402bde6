"""Read and write large files past the page cache (O_DIRECT), digested on the way.

Bytes that go through the cache are paid for more than once: for its pages, for the copy into them or out of them, and
when they are brought to the disk. They also push out what runs read. What is in the cache already is read from there;
where a file system knows no O_DIRECT all of it goes through the cache.
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

CHUNK_BYTES = 4 << 20  # several requests to the disk, which it works on side by side
_PAGE_BYTES = 4096
_NUM_PROBES = 4
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux alone has it
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_own = threading.local()


def digest_stored(path: str) -> tuple[str, int]:
    """(sha256, size) of a file that nobody changes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size >= CHUNK_BYTES and not _is_cached(descriptor, size) and bypass_cache(descriptor):
            return _in_chunks(descriptor, None)
        return read_through(descriptor)
    finally:
        os.close(descriptor)


def copy_large(given: int, made: int, size_bytes: int) -> tuple[str, int]:
    """(sha256, size) of an open file, whose bytes also go to `made`.

    Args:
        made: a new file, after `bypass_cache`.
        size_bytes: of the file when it was looked at; at least a chunk.
    """
    if not _is_cached(given, size_bytes):
        bypass_cache(given)
    return _in_chunks(given, made)


def _in_chunks(given: int, made: int | None) -> tuple[str, int]:
    """While a chunk is digested the one before is written and the next one is read."""
    from concurrent.futures import ThreadPoolExecutor  # lazy: brings `logging`; most runs pin no data

    digest, position, num_held = hashlib.sha256(), 0, 0
    view, other = _chunks()
    with ThreadPoolExecutor(1) as disk:  # leaving it waits for what is under way
        size = _read(given, view, 0)
        while size:
            coming = disk.submit(_exchange, given, made, other, num_held, position, size)
            digest.update(view[:size])
            view, other, num_held, position, size = other, view, size, position + size, coming.result()
    if made is not None:
        _write(made, other[:num_held], position - num_held)
    return digest.hexdigest(), position


def _exchange(given: int, made: int | None, view: memoryview, num_held: int, position: int, size: int) -> int:
    """Write what a buffer holds, which ends at `position`, and fill it with what comes `size` behind that."""
    if made is not None:
        _write(made, view[:num_held], position - num_held)
    return _read(given, view, position + size)


def bypass_cache(descriptor: int, *, is_on: bool = True) -> bool:
    """Read and write an open file past the page cache, or no longer; False where the file system cannot."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT if is_on else flags & ~_DIRECT)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return _DIRECT != 0


def _is_cached(descriptor: int, size_bytes: int) -> bool:
    """Whether a file seems to be in the page cache: some of its pages are, or nobody can tell."""
    if not _DIRECT:
        return True
    page = bytearray(1)
    try:
        for _ in range(_NUM_PROBES):  # each time others: a probe brings its own page in
            os.preadv(descriptor, [page], random.randrange(size_bytes), os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    return True


def _chunks() -> tuple[memoryview, memoryview]:
    """This thread's two buffers, at the beginning of pages; new memory for every file would cost as much as the cache."""
    try:
        found: tuple[memoryview, memoryview] = _own.chunks
    except AttributeError:
        found = _own.chunks = (memoryview(mmap.mmap(-1, CHUNK_BYTES)), memoryview(mmap.mmap(-1, CHUNK_BYTES)))
    return found


def _read(descriptor: int, view: memoryview, position: int) -> int:
    """Read until it is full or the file ends."""
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
    """Go on through the cache after the end of a file, or where a file system promised too much; else raise."""
    if error.errno not in _REFUSED or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT:
        raise error
    bypass_cache(descriptor, is_on=False)
