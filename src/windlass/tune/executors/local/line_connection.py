"""The head's end of a connection: non-blocking JSON lines over a stream socket."""

from __future__ import annotations

import array
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from windlass.core.json_text import decode_json
from windlass.tune.executors.channel import MAX_LINE_BYTES, BadMessageError, Message, decode_line, encode_line

__all__ = ["LineConnection"]

_PIECE = 1 << 18


class LineConnection:
    """Connection that reads complete lines and buffers data that cannot be written yet.

    Attributes:
        is_closed: the other side is gone, or sent an invalid message; all earlier messages were read.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.is_closed = False
        self._socket = connection
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for use with a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Return whether there is data that `flush` must write once the socket is writable."""
        return bool(self._unsent)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Write a line, or as much of it as fits now; descriptors are sent with its first byte."""
        line = encode_line(message)
        if descriptors:
            self._send_first(line, descriptors)
            return
        self._unsent += line
        self.flush()

    def _send_first(self, line: bytes, descriptors: Sequence[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._socket.setblocking(True)
        try:
            if self._unsent:
                self._socket.sendall(self._unsent)
                self._unsent.clear()
            sent = self._socket.sendmsg([line], [rights])
            self._socket.sendall(line[sent:])
        except OSError:
            self.is_closed = True
        finally:
            self._socket.setblocking(False)

    def flush(self) -> None:
        """Write as much of the buffered data as fits."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def receive(self) -> list[Message]:
        """Return all complete messages; set `is_closed` at the end of the stream."""
        try:
            while True:
                piece = self._socket.recv(_PIECE)
                if not piece:
                    self.is_closed = True
                    break
                self._received += piece
                if len(piece) < _PIECE:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.is_closed = True
        end = self._received.rfind(b"\n")
        if end < 0:
            self.is_closed = self.is_closed or len(self._received) > MAX_LINE_BYTES
            return []
        lines = bytes(self._received[:end])
        del self._received[: end + 1]
        with contextlib.suppress(ValueError):
            found: list[Any] = decode_json(b"[" + lines.replace(b"\n", b",") + b"]")
            if all(type(message) is dict and type(message.get("type")) is str for message in found):
                return found
        return self._whole_ones(lines)

    def _whole_ones(self, lines: bytes) -> list[Message]:
        """Return the messages before the first invalid one; bytes after it cannot be trusted."""
        found: list[Message] = []
        try:
            found.extend(map(decode_line, lines.split(b"\n")))
        except BadMessageError:
            self.is_closed = True
        return found

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.is_closed = True
        self._socket.close()
