"""Meeting of a learner and workers that it did not start: workers outlive it, and join the next one.

The learner writes its address and a key into a file beside its checkpoints that only its user can read. A worker reads the
file again and again; whenever there is another learner, it connects. Both prove that they know the key, which is never sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import queue
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from windlass.core.files import write_atomic
from windlass.core.json_text import decode_object
from windlass.post.channel import FrameStream, read_bytes, read_settings

__all__ = ["ADDRESS_FILE", "JoinedWorker", "LearnerAddress", "LearnerSearch", "WorkerListener", "tell_finished"]

ADDRESS_FILE = "workers.json"
"""File in the folder of checkpoints that tells workers where the learner is."""
_NONCE_BYTES, _PROOF_BYTES = 16, 32
_HELLO_BYTES = 4096
_HANDSHAKE_S = 5.0
_SEARCH_S = 0.25
_SILENCE_MS = 20_000
"""Time after which a connection ends whose other side does not confirm what it was sent: its power was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerAddress:
    """Address of a learner, or that its run is finished.

    Attributes:
        incarnation: how many learners this run has had.
    """

    host: str
    port: int
    key: str
    incarnation: int
    is_finished: bool = False

    @classmethod
    def read(cls, folder: Path) -> LearnerAddress | None:
        """Return the address in a folder of checkpoints; None if there is none, or it is another user's."""
        try:
            with (folder / ADDRESS_FILE).open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                return cls(**decode_object(file.read()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Store the address, readable by this user alone."""
        write_atomic(folder / ADDRESS_FILE, json.dumps(asdict(self)).encode(), mode=0o600)


def tell_finished(folder: Path) -> None:
    """Let the workers of a run end, as it is finished; idempotent, and without effect if it never had any."""
    address = LearnerAddress.read(folder)
    if address is not None and not address.is_finished:
        replace(address, is_finished=True).write(folder)


class JoinedWorker:
    """A worker that has connected, and the stream to it; its process is not this one's to end."""

    def __init__(self, connection: socket.socket, hello: Mapping[str, Any], *, max_frame_bytes: int) -> None:
        self.name, self.pid = str(hello["name"]), int(hello["pid"])
        self.incarnation = int(hello["incarnation"])
        """Number of the learner that it was connected to before; 0: none."""
        self._connection, self._max_frame_bytes = connection, max_frame_bytes

    def begin(self, settings: Mapping[str, object]) -> JoinedWorker:
        """Send the settings of its engine; from now on it has a channel."""
        with contextlib.suppress(OSError):  # it has gone, as reading will show
            self._connection.sendall(json.dumps(settings).encode() + b"\n")
        self.channel = FrameStream(self._connection, max_frame_bytes=self._max_frame_bytes)
        return self

    def close(self, timeout_s: float = 0.0) -> str:
        """Close the stream; the worker looks for the next learner. Idempotent."""
        del timeout_s
        self._connection.close()
        return "the connection was closed"


class WorkerListener:
    """Place where workers find this learner; a thread accepts them.

    Args:
        folder: the run's folder of checkpoints.
        host: address of this machine that workers can reach.
    """

    def __init__(self, folder: Path, host: str, *, max_frame_bytes: int) -> None:
        self._folder, self._max_frame_bytes = folder, max_frame_bytes
        folder.mkdir(parents=True, exist_ok=True)
        before = LearnerAddress.read(folder)
        self._arrived: queue.SimpleQueue[JoinedWorker] = queue.SimpleQueue()
        self._listener = socket.create_server((host, 0))
        self.address = LearnerAddress(
            host=host,
            port=self._listener.getsockname()[1],
            key=secrets.token_hex(_PROOF_BYTES),
            incarnation=1 if before is None else before.incarnation + 1,
        )
        self.address.write(folder)
        threading.Thread(target=self._accept, name="rollouts-workers", daemon=True).start()

    def arrivals(self) -> list[JoinedWorker]:
        """Return the workers that have connected since the last call."""
        return [self._arrived.get() for _ in range(self._arrived.qsize())]

    def close(self) -> None:
        """Accept no workers any more; those that are connected wait for the next learner. Idempotent."""
        if self._listener.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread
        self._listener.close()
        for worker in self.arrivals():
            worker.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                self._arrived.put(self._welcome(connection))
            except (OSError, ValueError, KeyError, TypeError):  # somebody else, or a worker that went away
                connection.close()

    def _welcome(self, connection: socket.socket) -> JoinedWorker:
        connection.settimeout(_HANDSHAKE_S)
        theirs, ours = read_bytes(connection, _NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_proof(self.address.key, "learner", theirs) + ours)
        if not hmac.compare_digest(read_bytes(connection, _PROOF_BYTES), _proof(self.address.key, "worker", ours)):
            raise ConnectionError
        with connection.makefile("rb", buffering=0) as file:
            hello = decode_object(file.readline(_HELLO_BYTES))
        _end_if_silent(connection)
        return JoinedWorker(connection, hello, max_frame_bytes=self._max_frame_bytes)


class LearnerSearch:
    """A thread of a worker that connects to each learner of a run.

    Args:
        name: of the worker, the same for all learners.

    Attributes:
        is_finished: whether the run is finished.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.is_finished = False
        self._folder, self._name = folder, name
        self._found: queue.SimpleQueue[tuple[socket.socket, dict[str, Any]]] = queue.SimpleQueue()
        self._current: LearnerAddress | None = None
        self._incarnation = 0
        self._end = threading.Event()
        threading.Thread(target=self._run, name="learner-search", daemon=True).start()

    def take(self) -> tuple[socket.socket, dict[str, Any]] | None:
        """Return the connection to another learner, and the settings that it sent; None: there is none yet."""
        with contextlib.suppress(queue.Empty):
            return self._found.get_nowait()
        return None

    def lost(self) -> None:
        """Note that the connection ended: connect again, also to the same learner."""
        self._current = None

    def close(self) -> None:
        """End the thread."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(_SEARCH_S):
            address = LearnerAddress.read(self._folder)
            if address is None or address == self._current:
                continue
            self.is_finished = address.is_finished
            if not address.is_finished:
                with contextlib.suppress(OSError, ValueError):
                    self._current = address  # before it is used, so that `lost` comes later
                    if not self._connect(address):
                        self._current = None

    def _connect(self, address: LearnerAddress) -> bool:
        try:
            connection = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_S)
        except OSError:
            return False
        try:
            ours = secrets.token_bytes(_NONCE_BYTES)
            connection.sendall(ours)
            found = read_bytes(connection, _PROOF_BYTES + _NONCE_BYTES)
            if not hmac.compare_digest(found[:_PROOF_BYTES], _proof(address.key, "learner", ours)):
                raise ConnectionError
            hello = {"name": self._name, "pid": os.getpid(), "incarnation": self._incarnation}
            proof = _proof(address.key, "worker", found[_PROOF_BYTES:])
            connection.sendall(proof + json.dumps(hello).encode() + b"\n")
            _end_if_silent(connection)
            connection.settimeout(None)
            self._found.put((connection, read_settings(connection)))
            self._incarnation = address.incarnation
        except (OSError, ValueError):
            connection.close()
            return False
        return True


def _proof(key: str, who: str, nonce: bytes) -> bytes:
    return hmac.new(bytes.fromhex(key), who.encode() + nonce, hashlib.sha256).digest()


def _end_if_silent(connection: socket.socket) -> None:
    """Let the kernel end the connection if the other machine is gone. Source: tcp(7)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
