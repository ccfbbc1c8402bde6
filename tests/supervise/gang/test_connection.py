"""The leader's socket survives whatever a stranger sends, and lets in only who proves that it knows the token."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from windlass.supervise.gang.connection import HANDSHAKE_S, MAX_UNVERIFIED, PROOF_S, LeaderClient, LeaderServer
from windlass.supervise.gang.handshake import ClientHandshake, ServerHandshake
from windlass.supervise.gang.messages import Order, ReplicaStatus

TOKEN = "0123456789abcdef"
HELLO = ClientHandshake(TOKEN, 1).hello()
NONSENSE = [
    b"1\n",
    b"[]\n",
    b'{"token":"' + TOKEN.encode() + b'","rank":1}\n',
    b"\xff\xfe\n",
    b"\n",
    b"[" * 5000 + b"\n",
    b"x" * (2 << 20),
    HELLO.replace(b"00000001", b"00000004"),  # no such rank
    HELLO.replace(b"00000001", b"-0000001"),
    HELLO + b"0" * 64 + b"\n",
    HELLO + b"\n" * 65,
    HELLO.rstrip() + b"[" * 5000 + b"\n",
]


class Bench:
    """A server and the loop around it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.selector = selectors.DefaultSelector()
        self.statuses: list[ReplicaStatus] = []
        self.lost: list[int] = []
        self.orders: list[Order] = []
        self.server = LeaderServer(
            "127.0.0.1",
            TOKEN,
            self.selector,
            self.statuses.append,
            self.lost.append,
            num_replicas=4,
            clock=lambda: self.now,
        )

    def turn(self, is_done: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Handle events until a predicate holds."""
        deadline = time.monotonic() + timeout_s
        while not is_done():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.01):
                key.data()

    def follower(self, rank: int = 1, token: str = TOKEN) -> LeaderClient:
        return LeaderClient(rank, token, self.selector, self.orders.append, clock=lambda: self.now)

    def stranger(self) -> socket.socket:
        stranger = socket.create_connection(("127.0.0.1", self.server.port))
        stranger.setblocking(False)
        return stranger

    def show_out(self, stranger: socket.socket, sent: bytes = b"") -> None:
        """Send, and take what comes, until the server closes the connection."""
        unsent = sent

        def is_closed() -> bool:
            nonlocal unsent
            try:
                if unsent:
                    unsent = unsent[stranger.send(unsent) :]
                return stranger.recv(4096) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        self.turn(is_closed)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.server.close()
    bench.selector.close()


@pytest.mark.parametrize("sent", NONSENSE, ids=range(len(NONSENSE)))
def test_a_stranger_is_shown_out(bench: Bench, sent: bytes) -> None:
    with bench.stranger() as stranger:
        bench.show_out(stranger, sent)
    assert (bench.statuses, bench.lost, bench.server.num_unverified) == ([], [], 0)


def test_a_replica_is_heard_and_told(bench: Bench) -> None:
    follower = bench.follower()
    assert follower.connect("127.0.0.1", bench.server.port)
    follower.send(ReplicaStatus(rank=1))
    bench.turn(lambda: bench.statuses)
    bench.server.send(Order(epoch=3))
    bench.turn(lambda: bench.orders)
    assert (bench.statuses[0].rank, bench.orders[0].epoch) == (1, 3)
    follower.close()
    bench.turn(lambda: bench.lost)
    assert bench.lost == [1]


def test_a_replica_with_another_token_is_shown_out(bench: Bench) -> None:
    follower = bench.follower(token="f" * 16)
    follower.send(ReplicaStatus(rank=1))
    follower.connect("127.0.0.1", bench.server.port)
    bench.turn(lambda: not follower.is_connected)
    assert bench.statuses == []
    assert not follower.connect("127.0.0.1", bench.server.port)  # the same port counts only with a proof now
    follower.close()


def test_who_proves_nothing_has_seconds(bench: Bench) -> None:
    with bench.stranger() as silent, bench.stranger() as slow:
        bench.turn(lambda: bench.server.num_unverified == 2)
        for moment in range(int(HANDSHAKE_S) - 1):
            bench.now = float(moment)
            slow.send(HELLO[moment : moment + 1])
            bench.server.tick()
            bench.turn(lambda: True)
        assert bench.server.num_unverified == 2
        bench.now = HANDSHAKE_S
        bench.server.tick()
        bench.show_out(silent)
        bench.show_out(slow)
    assert bench.server.num_unverified == 0


def test_thousands_of_strangers_leave_the_replicas_alone(bench: Bench) -> None:
    first, second = bench.follower(1), bench.follower(2)
    first.send(ReplicaStatus(rank=1))
    first.connect("127.0.0.1", bench.server.port)
    bench.turn(lambda: len(bench.statuses) == 1)
    with contextlib.ExitStack() as stack:
        for number in range(2000):
            stranger = stack.enter_context(bench.stranger())
            stranger.send(NONSENSE[number % 5][:1])
            for key, _ in bench.selector.select(0):
                key.data()
            if number == 1000:
                second.send(ReplicaStatus(rank=2))
                second.connect("127.0.0.1", bench.server.port)
            if number > 1000 and not second.is_connected:  # one of those that had to go: it tries again
                second.connect("127.0.0.1", bench.server.port)
        assert bench.server.num_unverified <= MAX_UNVERIFIED
        bench.turn(lambda: {status.rank for status in bench.statuses} == {1, 2})
    assert bench.lost == []
    first.close()
    second.close()


def test_the_port_of_a_dead_leader_may_be_anybodys(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]
        follower = bench.follower()

        def is_connected() -> bool:
            return follower.is_connected

        follower.send(ReplicaStatus(rank=1))
        assert follower.connect("127.0.0.1", port)
        connection, _ = impostor.accept()
        with connection:
            heard = connection.recv(4096)
            assert TOKEN.encode() not in heard
            assert is_connected()
            bench.now = PROOF_S
            assert not is_connected()
            assert not follower.connect("127.0.0.1", port)  # connected, and it counts for nothing
        again, _ = impostor.accept()
        with again:
            hello = again.recv(4096)
            again.sendall(b"[" * 5000 + b"\n" + hello)
            for key, _ in bench.selector.select(5.0):
                key.data()
            assert not is_connected()
            assert bench.orders == []
    follower.close()


def test_a_replica_that_sends_nonsense_is_dropped_and_may_come_back(bench: Bench) -> None:
    for sent in (b"[" * 5000 + b"\n", b'{"status":1}\n', b'{"status":{"phase":"x"}}\n', b"{}\n" + b"7" * (2 << 20)):
        caller = ClientHandshake(TOKEN, 3)
        with bench.stranger() as replica:
            replica.send(caller.hello())
            answer = b""

            def is_answered(replica: socket.socket = replica, caller: ClientHandshake = caller) -> bool:
                nonlocal answer
                with contextlib.suppress(BlockingIOError):
                    answer = caller.receive(replica.recv(4096))
                return caller.is_done

            bench.turn(is_answered)
            replica.send(answer)
            bench.turn(lambda: bench.server.num_unverified == 0)
            bench.show_out(replica, sent)
    assert bench.lost == [3] * 4
    follower = bench.follower(3)
    follower.send(ReplicaStatus(rank=3))
    follower.connect("127.0.0.1", bench.server.port)
    bench.turn(lambda: bench.statuses)
    follower.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_handshake_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    caller, gatekeeper = ClientHandshake(TOKEN, 2), ServerHandshake(TOKEN, 3)
    to_leader, to_replica = caller.hello(), b""
    tail = b'{"status":{}}\n' if seed % 2 else b""
    is_tail_sent = False
    for _ in range(10_000):
        cut = rng.randint(0, len(to_leader))
        to_replica += gatekeeper.receive(to_leader[:cut])
        to_leader = to_leader[cut:]
        cut = rng.randint(0, len(to_replica))
        to_leader += caller.receive(to_replica[:cut])
        to_replica = to_replica[cut:]
        if caller.is_done and not is_tail_sent:
            to_leader, is_tail_sent = to_leader + tail, True
        if gatekeeper.rank == 2 and not to_leader:
            break
    assert (gatekeeper.rank, caller.is_done, gatekeeper.rest) == (2, True, tail)
