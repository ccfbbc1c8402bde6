"""Server of a virtual cloud: `python -m windlass.cluster.providers.virtual.server FOLDER`, as root.

It returns when the server takes requests, which then runs on its own: it ends when the cluster has had no machines for a
while. A second server of a folder ends at once. Every connection has one request, at most `MAX_BYTES`, and little time;
what is not signed with the cluster's token gets no reply.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from windlass.cluster.providers.virtual.boot import Booter
from windlass.cluster.providers.virtual.cloud import VirtualCloud
from windlass.cluster.providers.virtual.network import claim_network, remove_network
from windlass.cluster.providers.virtual.records import CloudFolder
from windlass.cluster.providers.virtual.requests import DROPPED, CloudRequests
from windlass.cluster.providers.virtual.wire import FRESH_S, MAC, MAX_BYTES, clock_s, sign
from windlass.core.errors import WindlassError
from windlass.core.files import take_lock, write_atomic
from windlass.core.json_text import decode_json

__all__ = ["DIED", "CloudServer", "main", "token_of"]

DIED = 3
"""Exit code when the server died while it started, without a reason."""

_PORT = 8470
_MAX_CONNECTIONS = 64
_REQUEST_S = 10.0
_HEADER_BYTES = 8 << 10
_IDLE_S = 20.0
_FIRST_S = 120.0
_LAST_S = 2.0


class CloudServer:
    """Takes connections at an address until the cloud has had no machines for a while.

    Args:
        listener: a listening socket.
    """

    def __init__(self, cloud: VirtualCloud, requests: CloudRequests, listener: socket.socket, token: str) -> None:
        self._cloud, self._requests, self._listener, self._token = cloud, requests, listener, token
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()
        self._is_closing = False
        self._began_s = time.monotonic()

    def serve(self) -> None:
        """Take connections; returns when there is nothing left to do."""
        self._listener.settimeout(0.5)
        while not self._is_done():
            try:
                connection, (address, _) = self._listener.accept()
            except TimeoutError:
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._handle, args=[connection, address], daemon=True).start()
        self._listener.close()
        end_s = time.monotonic() + _LAST_S
        for _ in range(_MAX_CONNECTIONS):  # replies on their way need the network
            self._slots.acquire(timeout=max(0.0, end_s - time.monotonic()))

    def _is_done(self) -> bool:
        if self._cloud.num_living:
            return False
        idle_s = time.monotonic() - self._cloud.idle_since_s
        return self._is_closing or idle_s > (_IDLE_S if self._cloud.machines() else _FIRST_S)

    def _handle(self, connection: socket.socket, address: str) -> None:
        try:
            with connection:
                self._answer(connection, address)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a client that went away, or is none of ours: it gets no reply
        except Exception:  # noqa: BLE001 - the log has it; the client sees a lost reply
            traceback.print_exc()
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket, address: str) -> None:
        end_s = time.monotonic() + _REQUEST_S
        head, rest = _read_head(connection, end_s)
        lines = head.decode("ascii").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if method == "GET":
            found = self._requests.metadata(path, address)
            _reply(connection, json.dumps(found).encode(), status="404 Not Found" if found is None else "200 OK")
            return
        length = int(headers["content-length"])
        if method != "POST" or not 0 < length <= MAX_BYTES:
            raise ValueError("invalid request")
        body = _read(connection, rest, length, end_s)
        if not hmac.compare_digest(headers[MAC.lower()], sign(self._token, "request", body)):
            raise ValueError("invalid signature")
        message = decode_json(body)
        reply = self._message(message)
        if reply is not DROPPED:
            content = json.dumps(reply).encode()
            _reply(connection, content, sign(self._token, f"reply {message['nonce']}", content))

    def _message(self, message: dict[str, Any]) -> object:
        age_s = clock_s() - message["at"]
        if not -1.0 < age_s <= FRESH_S:
            return {"error": {"kind": "stale", "message": f"the request is {age_s:.1f} s old"}}
        if not self._is_new(message["nonce"]):
            raise ValueError("it was sent before")
        if message["verb"] == "close":
            self._is_closing = not self._cloud.num_living
            return {"result": self._is_closing}
        return self._requests.answer(message["verb"], message["arguments"])

    def _is_new(self, nonce: str) -> bool:
        now_s = clock_s()
        with self._lock:
            self._seen = {name: at_s for name, at_s in self._seen.items() if at_s > now_s - 2 * FRESH_S}
            if nonce in self._seen:
                return False
            self._seen[nonce] = now_s
        return True


def _read_head(connection: socket.socket, end_s: float) -> tuple[bytes, bytes]:
    """Return the head of a request, and what was read beyond it."""
    content = b""
    while b"\r\n\r\n" not in content:
        if len(content) > _HEADER_BYTES:
            raise ValueError("the head is too long")
        content += _receive(connection, _HEADER_BYTES, end_s)
    head, _, rest = content.partition(b"\r\n\r\n")
    return head, rest


def _read(connection: socket.socket, rest: bytes, length: int, end_s: float) -> bytes:
    content = bytearray(rest)
    while len(content) < length:
        content += _receive(connection, min(length - len(content), 1 << 16), end_s)
    return bytes(content[:length])


def _receive(connection: socket.socket, size: int, end_s: float) -> bytes:
    """Read what is there; a client that sends slowly has no more time in all than one that sends nothing."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)
    piece = connection.recv(size)
    if not piece:
        raise ConnectionError("cut short")
    return piece


def _reply(connection: socket.socket, content: bytes, mac: str = "", *, status: str = "200 OK") -> None:
    connection.settimeout(_REQUEST_S)
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    connection.sendall(f"{head}{MAC}: {mac}\r\nConnection: close\r\n\r\n".encode() + content)


def token_of(folder: CloudFolder) -> str:
    """Return the cloud's token; it is made once."""
    path = folder.path / "token"
    if not path.exists():
        write_atomic(path, secrets.token_hex(32).encode(), mode=0o600)
    return path.read_text().strip()


def _listen(address: str, port: int) -> socket.socket:
    """Return a listening socket at the port that the cloud had, or at a free one."""
    for number in [port] if port else [_PORT, 0]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, number))
            listener.listen(_MAX_CONNECTIONS)
        except OSError:
            listener.close()
            if port or number == 0:
                raise
        else:
            return listener
    raise AssertionError


def run(folder: CloudFolder, ready: int) -> None:
    """Serve a folder, whose lock this process holds.

    Args:
        ready: descriptor that is told when requests are taken.
    """
    mark, records = folder.path, folder.read()
    try:
        network = claim_network(mark, records.network if records.living else None)
        kept_port = records.port if network.number == records.network else 0
        with _listen(network.address, kept_port) as listener:
            port = listener.getsockname()[1]
            records = replace(records, network=network.number, port=port)
            folder.write(records)
            address, token = f"{network.address}:{port}", token_of(folder)
            cloud = VirtualCloud(folder, Booter(folder=folder, network=network, metadata=address), records)
            cloud.start()
            access = json.dumps({"address": address, "token": token}).encode()
            write_atomic(folder.access, access, mode=0o600)
            os.write(ready, b"ok")
            os.close(ready)
            CloudServer(cloud, CloudRequests(cloud, network.prefix), listener, token).serve()
            cloud.close()
    finally:
        if not folder.read().living:
            remove_network(mark)


def main(path: str) -> int:
    """Start a folder's server in a process of its own; return when it takes requests, or the exit code of its failure."""
    folder = CloudFolder(Path(path))
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader, "rb") as file:
            said = file.read().decode()
        if said != "ok":
            sys.stderr.write((said or "it died") + "\n")
        return 0 if said == "ok" else 1 if said else DIED
    os.close(reader)
    return _child(folder, writer)


def _child(folder: CloudFolder, ready: int) -> NoReturn:
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    code = 1
    try:
        take_lock(lock, folder.lock)
        run(folder, ready)
        code = 0
    except BlockingIOError:
        os.write(ready, b"ok")  # another server of the folder serves, or is about to
    except (WindlassError, OSError) as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            os.write(ready, str(error).encode())
    except BaseException:  # noqa: BLE001 - the log has it
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
