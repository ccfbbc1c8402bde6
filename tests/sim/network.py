"""The network between replicas: connections that delay, break, lose, double and disorder messages."""

from __future__ import annotations

from typing import Protocol

from tests.sim.node import Node
from tests.sim.world import World
from windlass.supervise.gang.messages import Order, ReplicaStatus

__all__ = ["Connection", "Network", "Peer"]

_LATENCY_S = (0.001, 0.03)
_LATE_S = 15.0


class Peer(Protocol):
    """A supervisor as the network sees it."""

    node: Node
    is_alive: bool

    def receive_order(self, connection: Connection, order: Order) -> None:
        """An order arrived."""

    def receive_status(self, connection: Connection, status: ReplicaStatus) -> None:
        """A status arrived."""

    def lose_connection(self, connection: Connection) -> None:
        """The other end is gone."""

    def admit(self, connection: Connection) -> None:
        """Another one connected."""


class Connection:
    """From a replica to its leader."""

    def __init__(self, follower: Peer, leader: Peer, rank: int) -> None:
        self.follower, self.leader, self.rank = follower, leader, rank
        self.is_open = True
        self.arrives_at = 0.0

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both ends."""
        return self.follower.node, self.leader.node


class Network:
    """All connections.

    Attributes:
        lossy_until: until then messages are lost, doubled and overtake one another.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._connections: list[Connection] = []
        self._ports: dict[int, Peer] = {}
        self._num_ports = 0
        self.lossy_until = 0.0

    def listen(self, peer: Peer) -> int:
        """Let others connect to a leader; returns a port that nobody has had."""
        self._num_ports += 1
        self._ports[self._num_ports] = peer
        return self._num_ports

    def stop_listening(self, peer: Peer) -> None:
        """Close the port of a leader, if it has one."""
        self._ports = {port: other for port, other in self._ports.items() if other is not peer}

    def listens(self, peer: Peer) -> bool:
        """Whether others can connect to it."""
        return peer in self._ports.values()

    def connect(self, follower: Peer, address: str, port: int, rank: int) -> Connection | None:
        """A new connection, or None when the other end cannot be reached."""
        leader = self._ports.get(port)
        if leader is None or leader.node.address != address or self._is_cut(follower.node, leader.node):
            return None
        connection = Connection(follower, leader, rank)
        self._connections = [other for other in self._connections if other.is_open] + [connection]
        leader.admit(connection)
        return connection

    def send_status(self, connection: Connection, status: ReplicaStatus, after_s: float = 0.0) -> None:
        """Replica to leader.

        Args:
            after_s: the sender still hangs for so long before it says it.
        """
        for delay in self._delays(connection):
            self._world.at(after_s + delay, self._deliver_status, connection, status)

    def send_order(self, connection: Connection, order: Order, after_s: float = 0.0) -> None:
        """Leader to replica."""
        for delay in self._delays(connection):
            self._world.at(after_s + delay, self._deliver_order, connection, order, delay >= _LATE_S)

    def close(self, end: Peer) -> None:
        """Break every connection of a process that is gone or has closed its end.

        A node that lost its power says nothing: the other end hears of it when the node is back.
        """
        silence_s = max(0.0, end.node.up_at - self._world.now) if self._world.chance(0.5) else 0.0
        for connection in self._connections:
            if connection.is_open and end in (connection.follower, connection.leader):
                self.break_off(connection, silence_s)

    def break_off(self, connection: Connection, silence_s: float = 0.0) -> None:
        """Break one connection; the living ends notice soon."""
        if not connection.is_open:
            return
        connection.is_open = False
        for end in (connection.follower, connection.leader):
            self._world.at(silence_s + self._world.uniform(*_LATENCY_S), end.lose_connection, connection)

    def isolate(self, node: Node) -> None:
        """Break what crosses the border of a node that cannot be reached any more."""
        for connection in self._connections:
            if connection.is_open and node in connection.nodes and connection.nodes[0] is not connection.nodes[1]:
                self.break_off(connection)

    def _is_cut(self, one: Node, other: Node) -> bool:
        return one is not other and (one.is_isolated or other.is_isolated)

    def _delays(self, connection: Connection) -> list[float]:
        """When the copies of a message arrive; empty when it is lost."""
        if not connection.is_open:
            return []
        world = self._world
        delay = world.uniform(*_LATENCY_S)
        if self._is_cut(*connection.nodes):
            delay += max(node.isolated_until for node in connection.nodes) - world.now
        if world.now < self.lossy_until:
            if world.chance(0.3):
                return []
            copies = [delay + world.uniform(0.0, 4.0)]
            return [*copies, world.uniform(_LATE_S, 2 * _LATE_S)] if world.chance(0.2) else copies
        connection.arrives_at = max(world.now + delay, connection.arrives_at)
        return [connection.arrives_at - world.now]

    def _deliver_status(self, connection: Connection, status: ReplicaStatus) -> None:
        if connection.is_open:
            connection.leader.receive_status(connection, status)

    def _deliver_order(self, connection: Connection, order: Order, is_late: bool) -> None:
        """A late copy arrives even where the connection it was sent on is gone: the epoch has to tell."""
        if connection.is_open or is_late:
            connection.follower.receive_order(connection, order)
