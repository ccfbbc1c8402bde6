"""Store of a cluster's head for machines that its autoscaler makes: archive, specs and files out, statuses in.

    GET  /archive                          zipapp of this agent
    GET  /spec?group=GROUP&instance=ID     spec of a node, without the token
    GET  /files                            `files.tar` of the head's folder
    POST /status                           status of a node, kept as `nodes/ID.json`; the reply is {"stop": BOOL}

Every request and reply is authenticated (`store_client`). Whoever lacks the token gets 401 and reads nothing: body sizes,
times and the connections of one address and of all are bounded before anything is read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import socket
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable
from urllib.parse import parse_qs, urlsplit

from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic
from windlass.core.json_text import decode_json
from windlass.supervise.node.agent_log import LogOnce, write_log
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus
from windlass.supervise.node.store_client import MAC, NONCE, TIME, WRONG_TIME, key_of, mac_of

__all__ = ["NodeStore", "node_statuses"]

_MAX_BODY_BYTES = 64 << 10
_MAX_NODES = 10_000
_MAX_CONNECTIONS = 64
_MAX_OF_ONE_ADDRESS = 8
_REQUEST_S = 10.0
_REPLY_S = 300.0
_FRESH_S = 60.0
_TOLD_S = 4.0
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{32}")


class NodeStore:
    """Server of the store; `start` returns once it accepts connections.

    Args:
        folder: the head's folder, with a template `group-GROUP.json` of each group's nodes.
        head: address and port of Ray's head.
        archive: the zipapp.
    """

    def __init__(
        self,
        folder: NodeFolder,
        spec: NodeSpec,
        *,
        address: str,
        head: str,
        archive: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._spec, self._head, self._archive, self._clock = folder, spec, head, archive, clock
        self._key, self._lock = key_of(spec.auth_token), threading.Lock()
        self._nonces: OrderedDict[str, float] = OrderedDict()
        self._posted_s: dict[str, float] = {}
        self._told: set[str] = set()
        self._log = LogOnce()
        self._server = _Server((address, spec.store_port), self)
        self.address = f"{address}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve from a thread of this process."""
        (self._folder.path / "nodes").mkdir(exist_ok=True)
        threading.Thread(target=self._server.serve_forever, args=(0.2,), name="store", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def await_told(self) -> None:
        """Return when each node that posted lately knows that it should end, or after a few seconds."""
        end_s = time.monotonic() + _TOLD_S
        while time.monotonic() < end_s:
            now_s = time.monotonic()
            with self._lock:
                left = [
                    each for each, at_s in self._posted_s.items() if at_s > now_s - _TOLD_S and each not in self._told
                ]
            if not left:
                return
            time.sleep(0.05)

    # ------------------------------------------------------------------------------------------------ of the handler

    def check(self, method: str, path: str, headers: Any, body: bytes) -> int:
        """Return 200 if a request is authentic and new, else the status of the refusal."""
        nonce, at, given = (headers.get(name) or "" for name in (NONCE, TIME, MAC))
        code = mac_of(self._key, "request", method, path, nonce, at, hashlib.sha256(body).hexdigest())
        if not _HEX.fullmatch(nonce) or not hmac.compare_digest(given.encode("latin-1", "replace"), code.encode()):
            return 401
        now, sent = self._clock(), _number(at)
        if sent is None or abs(now - sent) > _FRESH_S:
            return WRONG_TIME
        with self._lock:
            while self._nonces and next(iter(self._nonces.values())) <= now:
                self._nonces.popitem(last=False)  # the oldest; a walk over all is too slow for a thousand nodes
            if nonce in self._nonces:
                return 401
            self._nonces[nonce] = sent + 2 * _FRESH_S
        return 200

    def sign(self, nonce: str, status: int, digest: str) -> str:
        """Return the authentication code of a reply."""
        return mac_of(self._key, "reply", nonce, str(status), digest)

    def now(self) -> float:
        """Return the head's time."""
        return self._clock()

    def reply(self, method: str, path: str, body: bytes) -> bytes | Path:
        """Return the body of the reply to an authentic request, or a file with it.

        Raises:
            PreconditionError: there is no such thing.
        """
        parts = urlsplit(path)
        if (method, parts.path) == ("GET", "/archive"):
            return self._archive
        if (method, parts.path) == ("GET", "/files") and (self._folder.path / "files.tar").is_file():
            return self._folder.path / "files.tar"
        if (method, parts.path) == ("GET", "/spec"):
            query = parse_qs(parts.query)
            return self._node_spec(query.get("group", [""])[0], query.get("instance", [""])[0])
        if (method, parts.path) == ("POST", "/status"):
            return self._keep(body)
        raise PreconditionError(f"no {method} {parts.path}", code="not-found")

    def _node_spec(self, group: str, instance: str) -> bytes:
        if not _SAFE.fullmatch(group) or not _SAFE.fullmatch(instance):
            raise PreconditionError("invalid group or instance", code="invalid-value")
        try:
            template = NodeSpec.from_json((self._folder.path / f"group-{group}.json").read_bytes())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PreconditionError(f"no group `{group}`", code="not-found") from error
        spec = replace(
            template,
            token=hashlib.sha256(f"{self._spec.token} {instance}".encode()).hexdigest()[:32],
            number=self._number(instance),
            group=group,
            instance=instance,
            head=self._head,
            store=self.address,
            auth_token="",
        )
        return spec.to_json()

    def _number(self, instance: str) -> int:
        """Return a node's number; one that was given out is never used for another node."""
        path = self._folder.path / "nodes" / ".numbers"
        with self._lock:
            known = decode_json(path.read_bytes()) if path.exists() else {}
            if instance not in known:
                known[instance] = 1 + len(known)
                write_atomic(path, json.dumps(known).encode())
        return int(known[instance])

    def _keep(self, body: bytes) -> bytes:
        try:
            status = NodeStatus.from_data(decode_json(body))
            is_valid = bool(_SAFE.fullmatch(status.instance))
        except (ValueError, TypeError) as error:
            raise PreconditionError(f"invalid status: {error}", code="invalid-value") from error
        nodes = self._folder.path / "nodes"
        path = nodes / f"{status.instance}.json"
        if not is_valid or (not path.exists() and len(os.listdir(str(nodes))) > _MAX_NODES):
            raise PreconditionError("invalid status", code="invalid-value")
        try:
            write_atomic(path, json.dumps({**asdict(status), "seen_at": self._clock()}).encode())
        except OSError as error:  # such as a full disk: the node lives, and must hear whether it should end
            self._log.write(f"statuses of nodes are not kept: {error.strerror}")
        else:
            self._log.write("")
        is_ending = self._folder.is_stop_requested
        with self._lock:
            self._posted_s[status.instance] = time.monotonic()
            if is_ending or status.state == "ended":
                self._told.add(status.instance)
        return json.dumps({"stop": is_ending}).encode()


def node_statuses(folder: Path) -> list[dict[str, Any]]:
    """Return the last status of each node that was started from the store, with the time of its last post."""
    found = []
    for path in sorted((folder / "nodes").glob("*.json")):
        data = decode_json(path.read_bytes())
        found.append(data)
    return found


class _Server(ThreadingHTTPServer):
    """HTTP server whose connections are bounded in number, for one address and for all, and in time."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], store: NodeStore) -> None:
        self.store = store
        self._ends: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which may block."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse connections above the limits; each has a time by which its request must be complete."""
        with self._guard:
            counts = Counter(_peer(each) for each in self._ends)
            if len(self._ends) >= _MAX_CONNECTIONS or counts[client_address[0]] >= _MAX_OF_ONE_ADDRESS:
                return False
            self._ends[request] = time.monotonic() + _REQUEST_S
        return True

    def extend(self, request: socket.socket) -> None:
        """Give a connection time for the reply; its request is authentic."""
        with self._guard:
            self._ends[request] = time.monotonic() + _REPLY_S

    def service_actions(self) -> None:
        """Cut connections whose time is over."""
        now_s = time.monotonic()
        with self._guard:
            late = [each for each, end_s in self._ends.items() if end_s < now_s]
        for each in late:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._guard:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break; other errors go to the agent's log."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or len(length) > 9 or int(length) > _MAX_BODY_BYTES:
            self._send(413, b"")
            return
        body = self.rfile.read(int(length))
        if len(body) == int(length):
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        store = self.server.store
        status = store.check(self.command, self.path, self.headers, body)
        if status != 200:
            self._send(status, repr(store.now()).encode() if status == WRONG_TIME else b"")
            return
        self.server.extend(self.connection)
        try:
            found = store.reply(self.command, self.path, body)
        except PreconditionError as error:
            self._send(404, error.message.encode())
        except OSError as error:  # of the head's disk, not of the connection
            write_log(f"{self.command} {self.path}: {error}")
            self._send(500, str(error).encode())
        else:
            self._send(200, found)

    def _send(self, status: int, body: bytes | Path) -> None:
        """Send a reply that is signed; a file is read twice, not held in memory."""
        nonce = self.headers.get(NONCE) or ""
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        self.send_response_only(status)
        self.send_header("Content-Length", str(size))
        if _HEX.fullmatch(nonce):
            self.send_header(MAC, self.server.store.sign(nonce, status, _digest(body)))
        self.end_headers()
        if isinstance(body, bytes):
            self.wfile.write(body)
            return
        with open(str(body), "rb") as file:
            self.connection.sendfile(file)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing: strangers could fill the disk."""


def _digest(body: bytes | Path) -> str:
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    digest = hashlib.sha256()
    with open(str(body), "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def _peer(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
