"""Frames over a stream socket between a reward pool and its server; never blocks."""

from __future__ import annotations

import socket
import struct

__all__ = ["FrameStream"]

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 20


class FrameStream:
    """Buffers of frames, each with its length first, around a socket that is read and written when it is ready."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.is_closed = False
        self._unsent = bytearray()
        self._unread = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Return whether `flush` has something left to send."""
        return bool(self._unsent) and not self.is_closed

    def send(self, frame: bytes) -> None:
        """Queue a frame and send as much as the socket takes."""
        self._unsent += _LENGTH.pack(len(frame)) + frame
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes."""
        while self.has_unsent:
            try:
                del self._unsent[: self.connection.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError:  # the other side is gone, as reading will show too
                self.is_closed = True

    def receive(self) -> list[bytes]:
        """Return the complete frames that have arrived; sets `is_closed` at the end of the stream."""
        while not self.is_closed:
            try:
                data = self.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_closed = not data
            self._unread += data
        return self._split()

    def _split(self) -> list[bytes]:
        frames, start = [], 0
        while len(self._unread) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, start)
            stop = start + _LENGTH.size + length
            if len(self._unread) < stop:
                break
            frames.append(bytes(self._unread[start + _LENGTH.size : stop]))
            start = stop
        del self._unread[:start]
        return frames
