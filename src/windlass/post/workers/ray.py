"""Engine as an actor of a Ray cluster, on whichever node has room; the learner needs no Ray resources itself.

The actor connects back to the learner and proves itself with a token. From there on it is a worker like any other: Ray
places it and reports its end, and everything else goes over the connection. Requires a folder for weights that all nodes see.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Mapping
from typing import Any

from windlass.post.channel import FrameStream, read_bytes
from windlass.train.parallel.ray_processes import connect_to_ray

__all__ = ["RayProcess", "cluster_nodes"]

_TOKEN_BYTES = 32
_CONNECT_S = 30.0
_RELAY_BYTES = 1 << 20


class RayProcess:
    """A Ray actor that runs the worker of a `RemoteEngine`, and the stream to it.

    Args:
        settings: of the worker.
        num_cpus, num_gpus: what Ray reserves for the actor on its node.

    Raises:
        PreconditionError: Ray is not installed (`extra-missing`), or RAY_ADDRESS is not set (`ray-unreachable`).
        UnreachableError: cannot connect to Ray (`ray-unreachable`).
    """

    def __init__(
        self, settings: Mapping[str, object], *, num_cpus: float, num_gpus: float, max_frame_bytes: int
    ) -> None:
        ray = _connected()
        self._ray = ray
        token = secrets.token_bytes(_TOKEN_BYTES)
        ours, self._theirs = socket.socketpair()
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0))
        address = self._listener.getsockname()[:2]
        host = ray.remote(_WorkerHost).options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0)
        self._actor = host.remote()
        self._end = self._actor.run.remote(address, token, settings["num_threads"])
        ours.sendall(json.dumps(dict(settings)).encode() + b"\n")
        self.channel = FrameStream(ours, max_frame_bytes=max_frame_bytes)
        self.pid = 0
        threading.Thread(target=self._relay, args=(token,), name="rollouts-ray", daemon=True).start()

    def close(self, timeout_s: float = 5.0) -> str:
        """Close the stream, end the actor, and return how it ended. Idempotent."""
        self.channel.connection.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that waits for the actor
        self._listener.close()
        how = "the actor was ended"
        try:
            self._ray.get(self._end, timeout=max(0.1, timeout_s))
            how = "the actor returned"
        except self._ray.exceptions.GetTimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - Ray raises what the actor raised, or why it died
            how = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        self._ray.kill(self._actor, no_restart=True)
        return how

    def _relay(self, token: bytes) -> None:
        """Accept the actor's connection, and pass bytes between it and the stream until either side closes."""
        with self._theirs, contextlib.suppress(OSError):
            connection = self._accept(token)
            with connection, selectors.DefaultSelector() as selector:
                selector.register(connection, selectors.EVENT_READ, self._theirs)
                selector.register(self._theirs, selectors.EVENT_READ, connection)
                while True:
                    for key, _ in selector.select():
                        assert isinstance(key.fileobj, socket.socket)
                        data = key.fileobj.recv(_RELAY_BYTES)
                        if not data:
                            return
                        key.data.sendall(data)

    def _accept(self, token: bytes) -> socket.socket:
        """Return the connection of the actor; others, which do not know the token, are closed."""
        while True:
            connection, _ = self._listener.accept()
            connection.settimeout(_CONNECT_S)
            with contextlib.suppress(OSError):
                found = read_bytes(connection, _TOKEN_BYTES + 8)
                if hmac.compare_digest(found[:_TOKEN_BYTES], token):
                    self.pid = int.from_bytes(found[_TOKEN_BYTES:], "big")
                    connection.settimeout(None)
                    return connection
            connection.close()


def cluster_nodes() -> list[Mapping[str, float]]:
    """Return the resources of each living node of the Ray cluster of RAY_ADDRESS, such as `CPU` and `GPU`.

    Raises:
        PreconditionError: Ray is not installed (`extra-missing`), or RAY_ADDRESS is not set (`ray-unreachable`).
        UnreachableError: cannot connect to Ray (`ray-unreachable`).
    """
    return [dict(node["Resources"]) for node in _connected().nodes() if node["Alive"]]


class _WorkerHost:
    """Actor that runs a worker in its process."""

    def run(self, address: tuple[str, int], token: bytes, num_threads: int) -> int:
        """Connect to the learner, and serve it until it closes the connection."""
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
        from windlass.post.workers.worker import main  # lazy: in the actor's process only

        connection = socket.create_connection(address, timeout=_CONNECT_S)
        connection.settimeout(None)
        connection.sendall(token + os.getpid().to_bytes(8, "big"))
        return main(connection.detach())


def _connected() -> Any:
    """Return the module of Ray, connected to the cluster of RAY_ADDRESS."""
    return connect_to_ray("async.place: ray", "write `async.place: process`")
