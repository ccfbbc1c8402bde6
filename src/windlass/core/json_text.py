"""Decoding of JSON from other programs, with limits for files, messages and replies.

`json.loads` raises RecursionError for a few thousand brackets, accepts documents of any size, and returns values nested
so deeply that its caller fails. All of windlass decodes with `decode_json`, whose errors are ValueErrors.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["MAX_BYTES", "MAX_DEPTH", "JsonError", "decode_json", "decode_object", "read_json", "read_object"]

MAX_DEPTH = 100
"""Maximum levels of arrays and objects; windlass's own documents have about ten at most."""

MAX_BYTES = 256 << 20
"""Maximum bytes of a document; a manifest of a million files takes about 150 MB."""

_BOM = b"\xef\xbb\xbf"
_ALL_ARRAYS = bytes.maketrans(b"{}", b"[]")
_PLAIN = bytes(set(range(256)) - set(b'"[]{}'))


class JsonError(ValueError):
    """Error for a JSON document that is rejected: too large, too deeply nested, or not an object."""


def decode_json(
    content: bytes | bytearray | str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH, strict: bool = True
) -> Any:
    """Decode a JSON document in UTF-8; hardly slower than `json.loads`.

    Args:
        strict: as in `json.loads`: whether control characters in strings are rejected.

    Raises:
        ValueError: it is not JSON; `JsonError`: it is larger or deeper than the limits.
    """
    if len(content) > max_bytes:
        raise JsonError(f"larger than {max_bytes} bytes")
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(raw) > max_bytes:
        raise JsonError(f"larger than {max_bytes} bytes")
    if raw.count(b"[") + raw.count(b"{") > max_depth and _is_deeper(raw, max_depth):
        raise JsonError(f"nested more than {max_depth} levels deep")
    if not isinstance(content, str):
        content = (content[3:] if content.startswith(_BOM) else content).decode("utf-8", "surrogatepass")
    try:
        return json.loads(content, strict=strict)  # noqa: TID251  the one place with limits
    except RecursionError as error:  # the caller's stack is nearly full
        raise JsonError("nested too deep for this Python") from error


def decode_object(
    content: bytes | bytearray | str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> dict[str, Any]:
    """Decode a JSON document that must be an object; raises `JsonError` for anything else."""
    value = decode_json(content, max_bytes=max_bytes, max_depth=max_depth)
    if not isinstance(value, dict):
        raise JsonError("not an object")
    return value


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file; raises ValueError like `decode_json`, and for anything but a regular file."""
    return decode_json(_content(path, max_bytes), max_bytes=max_bytes)


def read_object(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON file that must contain an object."""
    return decode_object(_content(path, max_bytes), max_bytes=max_bytes)


def _content(path: Path, max_bytes: int) -> bytes:
    """Read at most one byte more than allowed; does not block if the path is a pipe."""
    descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise JsonError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes + 1)
    finally:
        os.close(descriptor)


def _is_deeper(raw: bytes | bytearray, max_depth: int) -> bool:
    """Return whether brackets outside strings are nested too deeply; this takes a few passes in C, without parsing.

    Only the brackets of the text are kept; every pass removes the innermost pair of each branch. Unclosed brackets
    stay, so a document that only opens brackets is as deep as it is long.
    """
    raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = raw.translate(_ALL_ARRAYS, _PLAIN).replace(b'""', b"")  # an even number of quotes less
    left = b"".join(marks.split(b'"')[::2])
    for _ in range(max_depth):
        shorter = left.replace(b"[]", b"")
        if len(shorter) == len(left):
            return left.count(b"[") > max_depth
        left = shorter
    return bool(left)
