"""Linux system calls that Python 3.9 lacks; each function returns whether the kernel supports it.

Source: prctl(2), splice(2), memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys

__all__ = [
    "become_subreaper",
    "create_memory_file",
    "die_with_parent",
    "enlarge_pipe",
    "set_process_name",
    "splice_to_file",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_SPLICE_F_NONBLOCK = 2
_F_SETPIPE_SZ = 1031
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - only for an anonymous file


def become_subreaper() -> bool:
    """Make this process the parent of its orphaned descendants; return False if unsupported."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Ask the kernel to send this signal when the parent process dies; return False if unsupported."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def set_process_name(name: str) -> bool:
    """Set this process's name, at most 15 characters; children inherit it until exec."""
    text = ctypes.create_string_buffer(name.encode())
    return _prctl(_PR_SET_NAME, ctypes.addressof(text))


def _prctl(option: int, argument: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    arguments = [ctypes.c_ulong(value) for value in (argument, 0, 0, 0)]
    return int(_libc().prctl(ctypes.c_int(option), *arguments)) == 0


def create_memory_file(name: str) -> int:
    """Return a descriptor of an anonymous file in memory, or of a temporary file without memfd."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    import tempfile  # lazy: only needed without memfd

    with tempfile.TemporaryFile(dir=_MEMORY_FOLDER if os.path.isdir(_MEMORY_FOLDER) else None) as file:
        return os.dup(file.fileno())


def splice_to_file(pipe: int, file: int, count: int, offset: int) -> int:
    """Move up to `count` bytes from a pipe to `offset` of a file, without copying them into this process.

    Never blocks. A SIGKILL takes effect before or after the move of a page, never in the middle of it.

    Returns:
        The number of bytes moved; 0 at the end of the pipe.

    Raises:
        BlockingIOError: the pipe is empty.
        NotImplementedError: splice is not supported; nothing was moved.
    """
    try:
        splice = getattr(os, "splice", None)  # Python 3.10
        if splice is not None:
            return int(splice(pipe, file, count, offset_dst=offset, flags=_SPLICE_F_NONBLOCK))
        return _splice(pipe, file, count, offset)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
            raise NotImplementedError(f"splice: {error}") from error
        raise


def _splice(pipe: int, file: int, count: int, offset: int) -> int:
    if not sys.platform.startswith("linux"):
        raise NotImplementedError(f"splice on {sys.platform}")
    position = ctypes.c_longlong(offset)
    call = _libc().splice
    call.restype = ctypes.c_ssize_t
    moved = int(
        call(
            ctypes.c_int(pipe),
            None,
            ctypes.c_int(file),
            ctypes.byref(position),
            ctypes.c_size_t(count),
            ctypes.c_uint(_SPLICE_F_NONBLOCK),
        )
    )
    if moved < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return moved


def enlarge_pipe(pipe: int, num_bytes: int) -> int:
    """Request a larger pipe, which the kernel may refuse; return the pipe's capacity (0 if unknown)."""
    try:
        return fcntl.fcntl(pipe, _F_SETPIPE_SZ, num_bytes)
    except OSError:
        return 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
