"""A registry with faults: a proxy on loopback that passes requests on and spoils some of the answers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

__all__ = ["FaultyRegistry"]

_ERRORS = {"401": b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}'}

Fault = Callable[[str, str], str]
"""Method and path to what goes wrong: empty, `401`, `500`, `507`, `cut` or `corrupt`."""


class FaultyRegistry:
    """A context: `with FaultyRegistry(lab.registry) as faulty: faulty.fault = ...`; `address` is where it listens."""

    def __init__(self, registry: str) -> None:
        self.registry = registry
        self.fault: Fault = lambda _method, _path: ""
        self.asked: list[tuple[str, str, int]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _joined(headers: Message) -> dict[str, str]:
    """Headers to pass on; of several lines `Accept` all count: with the last alone a registry answers in an old form."""
    kept = {name for name in headers if name.lower() not in ("transfer-encoding", "content-length")}
    return {name: ", ".join(str(value) for value in headers.get_all(name) or []) for name in kept}


def _handler(owner: FaultyRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

        def _pass_on(self) -> None:
            fault = owner.fault(self.command, self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = (
                self.rfile.read(length) if length else self._chunks() if self.headers.get("Transfer-Encoding") else b""
            )
            if fault.isdigit():
                self._answer(int(fault), {"Content-Type": "application/json"}, _ERRORS.get(fault, b"{}"))
                return
            upstream = http.client.HTTPConnection(owner.registry, timeout=300)
            headers = _joined(self.headers)
            upstream.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            got = upstream.getresponse()
            content = got.read()
            upstream.close()
            skipped = ("transfer-encoding", "connection", "content-length")
            answer = {name: value for name, value in got.getheaders() if name.lower() not in skipped}
            if self.command == "HEAD":
                answer["Content-Length"] = got.getheader("Content-Length") or "0"
            if fault == "corrupt" and len(content) > 100:
                content = content[:50] + bytes([content[50] ^ 255]) + content[51:]
            self._answer(got.status, answer, content, cut_at=len(content) // 2 if fault == "cut" else None)

        def _answer(self, status: int, headers: dict[str, str], body: bytes, cut_at: int | None = None) -> None:
            owner.asked.append((self.command, self.path, status))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut_at])
            if cut_at is not None:
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True

        def _chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - names of http.server

    return Handler
