"""One message between a client and a site: a header and pieces of bytes, taken whole or not at all.

`windlass-frame SHA256 LENGTH` and a newline, then LENGTH bytes: the header as one line of JSON, and the body. A message
that was cut or changed on the way, anywhere, does not fit its own digest.
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
    """The first line, of `FRAME_LINE_BYTES` bytes whatever it says, for the `length` bytes that follow it."""
    return b"%s %s %0*d\n" % (_WORD, sha256.encode(), _LENGTH_DIGITS, length)


def pack(header: Mapping[str, Any], pieces: Iterable[bytes] = ()) -> bytes:
    """A whole message."""
    held = list(pieces)
    sizes = [len(piece) for piece in held]
    head = json.dumps({"header": dict(header), "sizes": sizes}, separators=(",", ":")).encode() + b"\n"
    content = b"".join([head, *held])
    return frame_line(hashlib.sha256(content).hexdigest(), len(content)) + content


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """(header, pieces) of a message; raises ValueError unless it is whole."""
    line, content = message[:FRAME_LINE_BYTES], message[FRAME_LINE_BYTES:]
    if line != frame_line(hashlib.sha256(content).hexdigest(), len(content)):
        raise ValueError("the message was cut or changed on its way")
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
    """A long message as it comes in: read like a file, and checked at its end.

    Raises:
        ValueError: what comes in is no message.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._line = source.read(FRAME_LINE_BYTES)
        words = self._line.split()
        if len(words) != 3 or words[0] != _WORD:
            raise ValueError("the message was cut before it began")
        self._left = self._length = int(words[2])
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the content; fewer than `size` at its end only."""
        piece = self._source.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        self._digest.update(piece)
        return piece

    def header(self) -> dict[str, Any]:
        """The line of JSON that the content begins with."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self.read(1)
            if not byte:
                raise ValueError("the message was cut in its header")
            line += byte
            if len(line) > _MAX_HEADER_BYTES:
                raise ValueError(f"the message's header is longer than {_MAX_HEADER_BYTES} bytes")
        return decode_object(line)

    def finish(self) -> None:
        """Read what is left; raises ValueError unless the whole message came as it was sent."""
        while self.read(_PIECE_BYTES):
            pass
        if frame_line(self._digest.hexdigest(), self._length) != self._line or self._left:
            raise ValueError("the message was cut or changed on its way")
