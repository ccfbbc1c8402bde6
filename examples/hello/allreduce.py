"""The smallest gang: replicas that add up arrays over TCP. The first one sums, in order of rank, so every time alike."""

import socket
import time

import numpy as np


class Gang:
    """All replicas of one attempt; `address` and `port` are the leader's."""

    def __init__(self, rank, size, address, port, timeout_s=60.0):
        self.rank, self.size = rank, size
        self._peers = []  # of the first: all others, in order of rank; of the others: the first
        if rank > 0:
            self._peers = [_connect(address, port, rank, timeout_s)]
        elif size > 1:
            self._peers = _accept(address, port, size - 1, timeout_s)

    def sum(self, values):
        """The sum of every replica's `values` (float64), the same to the last bit on all of them."""
        if self.rank > 0:
            self._peers[0].sendall(values.tobytes())
            return _receive(self._peers[0], values.shape)
        total = values.copy()
        for peer in self._peers:
            total += _receive(peer, values.shape)
        return self.broadcast(total)

    def broadcast(self, values):
        """The first replica's `values`, on all of them."""
        if self.rank > 0:
            return _receive(self._peers[0], values.shape)
        for peer in self._peers:
            peer.sendall(values.tobytes())
        return values


def _accept(address, port, count, timeout_s):
    found = {}
    with socket.create_server((address, port)) as server:
        server.settimeout(timeout_s)
        while len(found) < count:
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found[int(_receive(peer, (1,))[0])] = peer
    return [found[rank] for rank in sorted(found)]


def _connect(address, port, rank, timeout_s):
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=timeout_s)
            break
        except ConnectionRefusedError:  # the first replica is not there yet
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(np.array([rank], np.float64).tobytes())
    return peer


def _receive(peer, shape):
    values = np.empty(shape)
    rest = memoryview(values).cast("B")
    while rest:
        count = peer.recv_into(rest)
        if count == 0:
            raise ConnectionError("another replica closed its connection")
        rest = rest[count:]
    return values
