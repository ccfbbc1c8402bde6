"""Tar archives from untrusted sources, read sequentially and within limits.

tarfile recurses for each extension header (a long name, a PAX header) and reads each of them into memory, so an archive
of a few kilobytes can cause a RecursionError, or allocate gigabytes. At the end of a file it continues to read for as
long as a header claims, possibly for years, and it does not catch errors in numbers.
"""

from __future__ import annotations

import tarfile
from typing import Any, Protocol

__all__ = ["open_stream"]

_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_MAX_EXTENSIONS = 8
_MAX_EXTENSION_BYTES = 1 << 20
_MAX_READS_AT_END = 64
"""Limit of reads at the end; tarfile needs a few to fill its last block."""


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def open_stream(source: _Source) -> tarfile.TarFile:
    """Open an uncompressed tar that is read once, sequentially; the caller closes it.

    Raises:
        tarfile.TarError: also raised while reading: it is not a tar, its headers exceed the limits or are invalid, it
            has a sparse file, or it ends within a member.
    """
    stream: Any = _Ending(source)
    return tarfile.open(fileobj=stream, mode="r|", tarinfo=_bounded_members())


class _Ending:
    """File that raises if its end is read too often."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._num_reads_at_end = 0

    def read(self, size: int) -> bytes:
        """See `io.RawIOBase.read`."""
        piece = self._source.read(size)
        self._num_reads_at_end += not piece
        if self._num_reads_at_end > _MAX_READS_AT_END:
            raise tarfile.ReadError("the archive is truncated")
        return piece


def _bounded_members() -> type[tarfile.TarInfo]:
    """Return a class for the members of one archive, which limits their headers."""
    num_extensions = 0

    class Member(tarfile.TarInfo):
        """Member whose headers are limited; see `_bounded_members`."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            """See `tarfile.TarInfo.frombuf`; called for each header, including extensions."""
            nonlocal num_extensions
            found = super().frombuf(buf, encoding, errors)
            if found.type == tarfile.GNUTYPE_SPARSE:
                raise tarfile.ReadError("it holds a sparse file")
            num_extensions = num_extensions + 1 if found.type in _EXTENSIONS else 0
            if num_extensions > _MAX_EXTENSIONS:
                raise tarfile.ReadError(f"a file has more than {_MAX_EXTENSIONS} headers")
            if num_extensions and found.size > _MAX_EXTENSION_BYTES:
                raise tarfile.ReadError(f"a header is larger than {_MAX_EXTENSION_BYTES} bytes")
            return found

        @classmethod
        def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Member:
            """See `tarfile.TarInfo.fromtarfile`."""
            try:
                return super().fromtarfile(tarfile_)
            except (ValueError, OverflowError) as error:
                raise tarfile.ReadError(f"invalid header: {error}") from error

    return Member
