"""Search for secrets in the files to export, including compressed files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from windlass.record.redact import Redactor
from windlass.runs.archive.contents import Item, unchanged

__all__ = ["MIN_BYTES", "find_secrets"]

MIN_BYTES = 8
"""Shorter encodings of a value occur in large files by chance."""

_PIECE_BYTES = 1 << 20
_OPENERS: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZIP = b"PK\x03\x04"
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
"""Errors raised by files that only look compressed, and by encrypted members."""


def find_secrets(items: Iterable[Item], secrets: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the names of the secrets that each file contains, by its path in the archive; other files are omitted.

    File names and link targets are searched too. Raises OSError for an unreadable file, and PreconditionError
    (`archive-changed`) for a file that was deleted.
    """
    redactor = Redactor(secrets, min_form_bytes=MIN_BYTES)
    found = {}
    for item in items:
        names = redactor.names_in(f"{item.path}\n{item.link}".encode("utf-8", "surrogateescape"))
        if item.source is not None and not item.link:
            with unchanged(item.source):
                names |= _in_file(item.source, redactor)
        if names:
            found[item.path] = sorted(names)
    return found


def _in_file(path: Path, redactor: Redactor) -> set[str]:
    with path.open("rb") as file:
        head = file.read(8)
        file.seek(0)
        names = _in_stream(file, redactor)
    try:
        for stream in _inside(path, head):
            with stream:
                names |= _in_stream(stream, redactor)
    except _BROKEN:
        return names
    return names


def _inside(path: Path, head: bytes) -> Iterator[IO[bytes]]:
    """Yield the contents of a compressed file as streams."""
    for magic, opened in _OPENERS.items():
        if head.startswith(magic):
            yield opened(path, "rb")
    if head.startswith(_ZIP):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    yield archive.open(member)


def _in_stream(stream: IO[bytes], redactor: Redactor) -> set[str]:
    names: set[str] = set()
    held = b""
    while piece := stream.read(_PIECE_BYTES):
        held += piece
        names |= redactor.names_in(held)
        held = held[-redactor.longest_form_bytes :]  # a value can span two pieces
    return names
