"""Framing of messages between a client and a site: a header and pieces of bytes, accepted only if complete.

`windlass-frame SHA256 LENGTH` and a newline, then LENGTH bytes: the header as one line of JSON, and the body. A message
that was truncated or changed in transit does not match its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from windlass.core.json_text import decode_object

__all__ = ["FRAME_LINE_BYTES", "FrameReader", "frame_line", "pack", "unpack"]

_WORD = b"windlass-frame"
_LENGTH_DIGITS = 16
FRAME_LINE_BYTES = len(_WORD) + 1 + 64 + 1 + _LENGTH_DIGITS + 1
_PIECE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20


def frame_line(sha256: str, length: int) -> bytes:
    """Return the first line of a frame for `length` bytes; it is always `FRAME_LINE_BYTES` long."""
    return b"%s %s %0*d\n" % (_WORD, sha256.encode(), _LENGTH_DIGITS, length)


def pack(header: Mapping[str, Any], pieces: Iterable[bytes] = ()) -> bytes:
    """Return a complete message."""
    body = list(pieces)
    sizes = [len(piece) for piece in body]
    head = json.dumps({"header": dict(header), "sizes": sizes}, separators=(",", ":")).encode() + b"\n"
    content = b"".join([head, *body])
    return frame_line(hashlib.sha256(content).hexdigest(), len(content)) + content


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the pieces of a message; raises ValueError unless it is complete."""
    line, content = message[:FRAME_LINE_BYTES], message[FRAME_LINE_BYTES:]
    if line != frame_line(hashlib.sha256(content).hexdigest(), len(content)):
        raise ValueError("the message was truncated or changed on the way")
    end = content.index(b"\n") + 1
    head = decode_object(content[:end])
    header, sizes = head.get("header"), head.get("sizes")
    are_sizes = isinstance(sizes, list) and all(isinstance(size, int) and size >= 0 for size in sizes)
    if not isinstance(header, dict) or not are_sizes:
        raise ValueError("the message has no header")
    pieces = []
    for size in sizes or ():
        pieces.append(content[end : end + size])
        end += size
    return header, pieces


class FrameReader:
    """File-like reader of a long message, which is verified at its end.

    Raises:
        ValueError: the input is not a message.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._line = source.read(FRAME_LINE_BYTES)
        words = self._line.split()
        if len(words) != 3 or words[0] != _WORD:
            raise ValueError("the message is empty or has no frame header")
        self._left = self._length = int(words[2])
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the content; fewer than `size` only at the end."""
        piece = self._source.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        self._digest.update(piece)
        return piece

    def header(self) -> dict[str, Any]:
        """Return the JSON object in the first line of the content."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self.read(1)
            if not byte:
                raise ValueError("the message was truncated in its header")
            line += byte
            if len(line) > _MAX_HEADER_BYTES:
                raise ValueError(f"the message's header is longer than {_MAX_HEADER_BYTES} bytes")
        return decode_object(line)

    def finish(self) -> None:
        """Read the rest; raises ValueError unless the message arrived as it was sent."""
        while self.read(_PIECE_BYTES):
            pass
        if frame_line(self._digest.hexdigest(), self._length) != self._line or self._left:
            raise ValueError("the message was truncated or changed on the way")
