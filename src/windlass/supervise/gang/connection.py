"""Connections between a gang's leader and its replicas: JSON lines over TCP, after a mutual handshake.

Replicas send statuses, the leader sends orders. Both ends run inside the supervisor's event loop and never block it;
no durable data is sent this way. Any local user can connect, so unverified connections are restricted: lines of fixed
length (`gang.handshake`), a time limit of a few seconds, and a maximum number, above which some are dropped at random. A
verified connection is never dropped in favour of an unverified one.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import time
from typing import Any, Callable

from windlass.core.json_text import decode_object
from windlass.supervise.gang.address import free_port
from windlass.supervise.gang.handshake import ClientHandshake, ServerHandshake
from windlass.supervise.gang.messages import Order, ReplicaStatus

__all__ = ["LeaderClient", "LeaderServer", "SocketNetwork"]

HANDSHAKE_S = 30.0
"""Time limit of a handshake: far longer than it takes on a busy machine."""

PROOF_S = 240.0
"""Time limit for the leader's proof; a shared disk may block a supervisor for three minutes."""

MAX_UNVERIFIED = 256
"""Maximum number of unverified connections."""

_BACKLOG = 4096
_ACCEPTED_AT_ONCE = 32
_MAX_LINE_BYTES = 1 << 20
_MAX_UNSENT_BYTES = 16 << 20
_MAX_DEPTH = 20
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Lines:
    """Non-blocking connection for JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._received = b""
        self._unsent = b""

    def send(self, message: dict[str, Any]) -> None:
        self.send_raw(_encode(message))

    def send_raw(self, content: bytes) -> None:
        self._unsent += content
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            raise ConnectionAbortedError(errno.ENOBUFS, "the peer does not read")
        self.flush()

    def flush(self) -> None:
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def receive_raw(self) -> bytes:
        """Return the bytes that have arrived; raises ConnectionError when the peer is gone."""
        try:
            piece = self.socket.recv(65536)
        except BlockingIOError:
            return b""
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        return piece

    def take(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the messages completed by these bytes; raises ConnectionError for invalid ones."""
        *lines, self._received = (self._received + piece).split(b"\n")
        if len(self._received) > _MAX_LINE_BYTES:
            raise ConnectionAbortedError(errno.EMSGSIZE, "line too long")
        try:
            return [decode_object(line, max_bytes=_MAX_LINE_BYTES, max_depth=_MAX_DEPTH) for line in lines]
        except ValueError as error:
            raise ConnectionAbortedError(errno.EPROTO, str(error)) from error


class _Peer:
    """Connection from a replica, and the state of its handshake."""

    def __init__(self, lines: _Lines, handshake: ServerHandshake, since: float) -> None:
        self.lines, self.since = lines, since
        self._handshake = handshake

    @property
    def rank(self) -> int:
        """Return the rank of the replica; -1 while unverified."""
        return self._handshake.rank

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages from a replica; bytes from an unverified peer go to the handshake only."""
        piece = self.lines.receive_raw()
        if self.rank < 0:
            try:
                answer = self._handshake.receive(piece)
            except ValueError as error:
                raise ConnectionAbortedError(errno.EACCES, str(error)) from error
            if answer:
                self.lines.send_raw(answer)
            if self.rank < 0:
                return []
            piece, self._handshake.rest = self._handshake.rest, b""
        return self.lines.take(piece)


class LeaderServer:
    """Leader's side of the connections: accepts replicas, passes on their statuses, sends the newest order to all.

    Args:
        num_replicas: size of the gang; higher ranks are refused.
        clock: monotonic time, for the time limit of handshakes.
    """

    def __init__(
        self,
        address: str,
        token: str,
        selector: selectors.BaseSelector,
        on_status: Callable[[ReplicaStatus], None],
        on_lost: Callable[[int], None],
        *,
        num_replicas: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._token, self._num_replicas, self._clock = token, num_replicas, clock
        self._selector = selector
        self._on_status, self._on_lost = on_status, on_lost
        self._peers: dict[_Peer, None] = {}  # ordered sets
        self._unverified: dict[_Peer, None] = {}
        self._order = b""
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def num_unverified(self) -> int:
        """Return the number of connections that have not completed the handshake."""
        return len(self._unverified)

    def send(self, order: Order) -> None:
        """Send this order to every replica, and to those that connect later."""
        self._order = _encode(order.to_data())  # encoded once, since the order of a big gang is long
        for peer in list(self._peers):
            if peer in self._peers:
                self._send(peer)

    def tick(self) -> None:
        """Close connections whose handshake timed out."""
        now = self._clock()
        for peer in [peer for peer in self._unverified if now >= peer.since + HANDSHAKE_S]:
            self._drop(peer)

    def close(self) -> None:
        """Close all connections and the port."""
        for peer in [*self._peers, *self._unverified]:
            self._drop(peer, notifies=False)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        """Accept some connections; the rest wait, so that connected replicas are served first."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._make_room(0)
                    break
                continue  # closed before it was accepted
            peer = _Peer(_Lines(connection), ServerHandshake(self._token, self._num_replicas), self._clock())
            self._unverified[peer] = None
            self._selector.register(connection, selectors.EVENT_READ, lambda peer=peer: self._read(peer))
        self.tick()
        self._make_room(MAX_UNVERIFIED)

    def _make_room(self, most: int) -> None:
        """Drop unverified connections at random until `most` are left.

        A dropped replica reconnects, and a flood is thinned out.
        """
        while len(self._unverified) > most:
            number = int.from_bytes(os.urandom(4), "big") % len(self._unverified)
            self._drop(list(self._unverified)[number])

    def _read(self, peer: _Peer) -> None:
        was_unverified = peer.rank < 0
        if was_unverified and peer not in self._unverified:
            return  # dropped earlier in this iteration of the loop
        try:
            messages = peer.receive()
            statuses = [ReplicaStatus.from_data(message) for message in messages if "status" in message]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._drop(peer)
            return
        if was_unverified and peer.rank >= 0:
            del self._unverified[peer]
            self._peers[peer] = None
            self._send(peer)
        for status in statuses:
            self._on_status(status)

    def _send(self, peer: _Peer) -> None:
        if not self._order:
            return
        try:
            peer.lines.send_raw(self._order)
        except OSError:
            self._drop(peer)

    def _drop(self, peer: _Peer, *, notifies: bool = True) -> None:
        among = self._unverified if peer in self._unverified else self._peers
        if peer not in among:
            return
        del among[peer]
        self._selector.unregister(peer.lines.socket)
        peer.lines.socket.close()
        if notifies and among is self._peers and peer.rank not in {other.rank for other in self._peers}:
            self._on_lost(peer.rank)


class LeaderClient:
    """Replica's side of the connection: completes the handshake, sends its status, receives orders."""

    def __init__(
        self,
        rank: int,
        token: str,
        selector: selectors.BaseSelector,
        on_order: Callable[[Order], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._token, self._clock = rank, token, clock
        self._selector = selector
        self._on_order = on_order
        self._lines: _Lines | None = None
        self._handshake = ClientHandshake(token, rank)
        self._status: ReplicaStatus | None = None
        self._since = 0.0
        self._target = self._doubtful = ("", 0)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection to a leader.

        A connection without the leader's proof counts for `PROOF_S`, since a leader may be blocked. The next connection to
        the same port counts only with a proof, since another program may use that port by now.
        """
        if self._lines is not None and not self._handshake.is_done and self._clock() >= self._since + PROOF_S:
            self.close()
        return self._lines is not None and (self._handshake.is_done or self._target != self._doubtful)

    def connect(self, address: str, port: int) -> bool:
        """Try to reach the leader; return `is_connected`. Blocks at most two seconds."""
        if self._lines is not None and not self._handshake.is_done and self._target == (address, port):
            return self.is_connected
        self.close()
        try:
            connection = socket.create_connection((address, port), timeout=2.0)
        except OSError:
            return False
        self._lines, self._handshake = _Lines(connection), ClientHandshake(self._token, self._rank)
        self._target, self._since = (address, port), self._clock()
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        try:
            self._lines.send_raw(self._handshake.hello())
        except OSError:
            self.close()
        return self.is_connected

    def send(self, status: ReplicaStatus) -> None:
        """Send the newest status; it is sent again after a reconnect."""
        self._status = status
        if self._lines is None or not self._handshake.is_done:
            return
        try:
            self._lines.send(status.to_data())
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection, if any."""
        if self._lines is not None:
            self._doubtful = ("", 0) if self._handshake.is_done else self._target
            self._selector.unregister(self._lines.socket)
            self._lines.socket.close()
            self._lines = None

    def _read(self) -> None:
        if self._lines is None:
            return
        try:
            orders = [Order.from_data(message) for message in self._receive(self._lines) if "order" in message]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.close()
            return
        for order in orders:
            self._on_order(order)

    def _receive(self, lines: _Lines) -> list[dict[str, Any]]:
        piece = lines.receive_raw()
        if self._handshake.is_done:
            return lines.take(piece)
        answer = self._handshake.receive(piece)
        if not answer:
            return []
        lines.send_raw(answer)
        if self._status is not None:
            lines.send(self._status.to_data())
        piece, self._handshake.rest = self._handshake.rest, b""
        return lines.take(piece)


class SocketNetwork:
    """Connections of one replica over TCP; see `windlass.supervise.ports.Network`.

    Args:
        address: address of this machine for its gang.
        selector: selector of the loop that calls back.
    """

    def __init__(
        self, rank: int, token: str, address: str, selector: selectors.BaseSelector, *, num_replicas: int
    ) -> None:
        self._rank, self._token, self._address, self._selector = rank, token, address, selector
        self._num_replicas = num_replicas

    def as_replica(self, on_order: Callable[[Order], None]) -> LeaderClient:
        """See `Network.as_replica`."""
        return LeaderClient(self._rank, self._token, self._selector, on_order)

    def as_leader(self, on_status: Callable[[ReplicaStatus], None], on_lost: Callable[[int], None]) -> LeaderServer:
        """See `Network.as_leader`."""
        return LeaderServer(
            self._address, self._token, self._selector, on_status, on_lost, num_replicas=self._num_replicas
        )

    def free_port(self) -> int:
        """See `Network.free_port`."""
        return free_port(self._address)


def _encode(message: dict[str, Any]) -> bytes:
    """Encode a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
