"""Byte format of archives: a compressed, deterministic tar file with plain files.

Equal files give equal bytes: no owners, no user names, whole seconds, two modes. gzip is streamed by the standard
library; `.tar.zst` is created by the `zstd` program from a temporary plain tar next to it.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.process import run
from windlass.core.tar import open_stream

__all__ = ["check_name", "damaged", "member", "open_for_reading", "open_for_writing"]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = (".tar.gz", ".tgz", ".tar.zst", ".tar")
_ZSTD_S = 6 * 3600.0


def check_name(path: Path) -> None:
    """Raise if a file name has no supported suffix."""
    if not path.name.endswith(_SUFFIXES):
        message = f"unsupported suffix of `{path.name}`; supported: {', '.join(_SUFFIXES)}"
        raise UsageError(message, hint=f"name it {path.name}.tar.gz", code="file-suffix")


@contextmanager
def open_for_writing(path: Path, name: str) -> Iterator[tarfile.TarFile]:
    """Open a tar file for writing, compressed as the suffix of `name` says; durable after the block.

    Raises:
        OSError: there is not enough space, or access is denied.
        PreconditionError: `zstd` is not installed, or failed.
    """
    plain = path.with_name(path.name + ".tar") if name.endswith(".zst") else path
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open(plain, "wb"))
            raw: IO[bytes] | gzip.GzipFile = file
            if name.endswith("gz"):
                raw = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
            with tarfile.open(fileobj=raw, mode="w|", format=tarfile.GNU_FORMAT) as archive:
                yield archive
        if plain != path:
            _zstd("-q", "-f", "-T1", str(plain), "-o", str(path))
    finally:
        if plain != path:
            plain.unlink(missing_ok=True)
    _fsync(path)


@contextmanager
def open_for_reading(path: Path, scratch: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar file with any supported compression, for reading as a stream.

    Args:
        scratch: path for the decompressed `.tar.zst`; removed after the block.

    Raises:
        PreconditionError: the file is not an archive, or is truncated or damaged.
        OSError: the file cannot be read, or there is not enough space.
    """
    with open(path, "rb") as file:
        head = file.read(4)
    try:
        with ExitStack() as stack:
            if head == _ZSTD_MAGIC:
                stack.callback(scratch.unlink, missing_ok=True)
                _zstd("-d", "-q", "-f", str(path), "-o", str(scratch))
            file = stack.enter_context(open(scratch if head == _ZSTD_MAGIC else path, "rb"))
            raw: IO[bytes] | gzip.GzipFile = file
            if head.startswith(_GZIP_MAGIC):
                raw = stack.enter_context(gzip.GzipFile(fileobj=file))
            yield stack.enter_context(open_stream(raw))
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, what: str) -> PreconditionError:
    """Return the error for a damaged archive."""
    hint = "copy it again from its source, and compare the sha256 of both files"
    return PreconditionError(f"{path} is not a valid archive of a run: {what}", hint=hint, code="archive-damaged")


def _zstd(*arguments: str) -> None:
    done = run(["zstd", *arguments], timeout_s=_ZSTD_S)
    if done.code:
        output = done.stderr.strip().replace("\n", "; ")
        raise PreconditionError(
            f"zstd failed: {output}", hint="check the archive and the free space", code="archive-damaged"
        )


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def member(name: str, size: int, *, is_executable: bool = False, mtime: float = 0.0, link: str = "") -> tarfile.TarInfo:
    """Return the tar header for a file or symbolic link, which does not depend on this machine."""
    info = tarfile.TarInfo(name)
    info.mode = 0o755 if is_executable else 0o644
    info.mtime = int(mtime)
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    else:
        info.size = size
    return info
