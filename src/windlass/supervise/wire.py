"""The leader's socket: JSON lines over TCP, statuses in, orders out; a connection proves itself with the job's token.

Both ends run inside the supervisor's one event loop and never block it. Nothing durable goes this way.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
from typing import Any, Callable

from windlass.supervise.messages import Order, Status

__all__ = ["Follower", "Server"]

_MAX_LINE_BYTES = 1 << 20


class _Lines:
    """One non-blocking connection that carries JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._received = b""
        self._unsent = b""

    def send(self, message: dict[str, Any]) -> None:
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def receive(self) -> list[dict[str, Any]]:
        """Whole messages that arrived; raises ConnectionError when the other side is gone or talks nonsense."""
        try:
            piece = self.socket.recv(65536)
        except BlockingIOError:
            return []
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the other side")
        *lines, self._received = (self._received + piece).split(b"\n")
        if len(self._received) > _MAX_LINE_BYTES:
            raise ConnectionAbortedError(errno.EMSGSIZE, "a line too long")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConnectionAbortedError(errno.EPROTO, "not JSON") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ConnectionAbortedError(errno.EPROTO, "not an object")
        return messages


class Server:
    """The leader's end: accepts replicas, hands their statuses over, sends everyone the newest order."""

    def __init__(
        self,
        address: str,
        token: str,
        selector: selectors.BaseSelector,
        on_status: Callable[[Status], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._listener = socket.create_server((address, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._token = token
        self._selector = selector
        self._on_status, self._on_lost = on_status, on_lost
        self._ranks: dict[_Lines, int] = {}
        self._order: Order | None = None
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def send(self, order: Order) -> None:
        """Give every replica, and those that connect later, this order."""
        self._order = order
        for lines in list(self._ranks):
            if self._ranks[lines] >= 0:
                self._send(lines)

    def close(self) -> None:
        """Close all connections and the port."""
        for lines in list(self._ranks):
            self._drop(lines, is_told=False)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        lines = _Lines(connection)
        self._ranks[lines] = -1
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(lines))

    def _read(self, lines: _Lines) -> None:
        try:
            messages = lines.receive()
        except OSError:
            self._drop(lines)
            return
        for message in messages:
            if self._ranks.get(lines, -1) < 0 and not self._admit(lines, message):
                return
            if "status" in message:
                self._on_status(Status.from_data(message))

    def _admit(self, lines: _Lines, message: dict[str, Any]) -> bool:
        import hmac  # lazy: brings OpenSSL, 4 ms; a task of one replica admits nobody

        token, rank = str(message.get("token", "")), message.get("rank")
        is_known = hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
        if not is_known or not isinstance(rank, int):
            self._drop(lines)
            return False
        self._ranks[lines] = rank
        self._send(lines)
        return True

    def _send(self, lines: _Lines) -> None:
        if self._order is None:
            return
        try:
            lines.send(self._order.to_data())
        except OSError:
            self._drop(lines)

    def _drop(self, lines: _Lines, *, is_told: bool = True) -> None:
        rank = self._ranks.pop(lines, -1)
        self._selector.unregister(lines.socket)
        lines.socket.close()
        if is_told and rank >= 0 and rank not in self._ranks.values():
            self._on_lost(rank)


class Follower:
    """A replica's end: connects, proves itself, sends its status, hands orders over."""

    def __init__(
        self, rank: int, token: str, selector: selectors.BaseSelector, on_order: Callable[[Order], None]
    ) -> None:
        self._rank, self._token = rank, token
        self._selector = selector
        self._on_order = on_order
        self._lines: _Lines | None = None
        self._status: Status | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to a leader."""
        return self._lines is not None

    def connect(self, address: str, port: int) -> bool:
        """Try to reach the leader; False when it is not there. Blocks at most two seconds."""
        self.close()
        try:
            connection = socket.create_connection((address, port), timeout=2.0)
        except OSError:
            return False
        lines = _Lines(connection)
        self._lines = lines
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        lines.send({"token": self._token, "rank": self._rank})
        if self._status is not None:
            self.send(self._status)
        return True

    def send(self, status: Status) -> None:
        """Send the newest status; a later connection sends it again."""
        self._status = status
        if self._lines is None:
            return
        try:
            self._lines.send(status.to_data())
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._lines is not None:
            self._selector.unregister(self._lines.socket)
            self._lines.socket.close()
            self._lines = None

    def _read(self) -> None:
        if self._lines is None:
            return
        try:
            messages = self._lines.receive()
        except OSError:
            self.close()
            return
        for message in messages:
            if "order" in message:
                self._on_order(Order.from_data(message))
