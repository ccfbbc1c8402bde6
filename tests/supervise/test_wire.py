"""The leader's socket survives whatever a stranger sends, and lets in only who has the token."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from windlass.supervise.messages import Order, Status
from windlass.supervise.wire import Follower, Server

TOKEN = "0123456789abcdef"
NONSENSE = [b"1\n", b"[]\n", b"null\n", b'{"token":"\xc3\xa9"}\n', b'{"token":1}\n', b"\xff\xfe\n", b"{\n", b'"x"\n']


class Bench:
    """A server and the loop around it."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.statuses: list[Status] = []
        self.lost: list[int] = []
        self.orders: list[Order] = []
        self.server = Server("127.0.0.1", TOKEN, self.selector, self.statuses.append, self.lost.append)

    def turn(self, is_done: object, timeout_s: float = 5.0) -> None:
        """Handle events until a predicate holds."""
        assert callable(is_done)
        deadline = time.monotonic() + timeout_s
        while not is_done():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.05):
                key.data()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.server.close()
    bench.selector.close()


@pytest.mark.parametrize("sent", [*NONSENSE, b'{"token":"' + TOKEN.encode() + b'","rank":"x"}\n', b"x" * (2 << 20)])
def test_a_stranger_is_shown_out(bench: Bench, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", bench.server.port)) as stranger:
        stranger.setblocking(False)
        unsent = sent

        def is_closed() -> bool:
            nonlocal unsent
            try:
                if unsent:
                    unsent = unsent[stranger.send(unsent) :]
                return stranger.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        bench.turn(is_closed)
    assert (bench.statuses, bench.lost) == ([], [])


def test_a_replica_is_heard_and_told(bench: Bench) -> None:
    follower = Follower(1, TOKEN, bench.selector, bench.orders.append)
    assert follower.connect("127.0.0.1", bench.server.port)
    follower.send(Status(rank=1))
    bench.turn(lambda: bench.statuses)
    bench.server.send(Order(epoch=3))
    bench.turn(lambda: bench.orders)
    assert (bench.statuses[0].rank, bench.orders[0].epoch) == (1, 3)
    follower.close()
    bench.turn(lambda: bench.lost)
    assert bench.lost == [1]
