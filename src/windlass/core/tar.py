"""Members of tar archives that others made, within limits.

tarfile calls itself for each extension header (a long name, a PAX header) and reads each whole into memory, so that an
archive of some kilobytes ends in RecursionError, or asks for gigabytes; and it lets errors of numbers out.
"""

from __future__ import annotations

import tarfile

__all__ = ["bounded_members"]

_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_MAX_EXTENSIONS = 8
_MAX_EXTENSION_BYTES = 1 << 20


def bounded_members() -> type[tarfile.TarInfo]:
    """The class of members for `tarfile.open(tarinfo=...)`, for one archive.

    What is beyond the limits, a sparse file, and a header that cannot be understood raise `tarfile.ReadError`.
    """
    num_extensions = 0

    class Member(tarfile.TarInfo):
        """See `bounded_members`."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            """See `tarfile.TarInfo`; called for each header, extensions included."""
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
            """See `tarfile.TarInfo`."""
            try:
                return super().fromtarfile(tarfile_)
            except (ValueError, OverflowError) as error:
                raise tarfile.ReadError(f"a header cannot be understood: {error}") from error

    return Member
