"""A real S3 server process on this machine (moto), and a proxy before it that misbehaves as it is told.

lab = S3Lab(); lab.up(); lab.env     AWS_ENDPOINT_URL and credentials: s3fs and boto3 talk to it
with FaultyProxy(lab.port) as proxy: proxy.fault = cut_after(1 << 20); proxy.env
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

__all__ = ["Fault", "FaultyProxy", "Request", "Rule", "S3Lab", "cut_after", "flip", "slow", "status"]

_LETTERS = "test"
_SCOPE = "20260101/us-east-1/s3/aws4_request"
_AUTHORISATION = f"AWS4-HMAC-SHA256 Credential={_LETTERS}/{_SCOPE}, SignedHeaders=host, Signature=0"


class S3Lab:
    """One server; its content is in memory and goes with it."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """Variables with which S3 clients find it."""
        return _env(self.port)

    def up(self) -> None:
        """Start it; returns when it answers. Clients of this process that know an earlier one are forgotten."""
        if "s3fs" in sys.modules:  # it keeps a client by its settings, whatever the variables say now
            sys.modules["s3fs"].S3FileSystem.clear_instance_cache()
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._server = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the S3 server does not start")

    def down(self) -> None:
        """End it; idempotent."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{name}", headers={"Authorization": _AUTHORISATION})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked; `number` counts from 1."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class Fault:
    """What happens to an answer: another status, a changed body, only its first bytes, or pieces with pauses."""

    status: int = 0
    cut_bytes: int = -1
    flips: bool = False
    pause_s: float = 0.0


Rule = Callable[[Request], "Fault | None"]


@dataclass
class FaultyProxy:
    """A proxy to a port of this machine; `fault` says for each request what goes wrong, and `seen` lists them all."""

    port: int
    fault: Rule = field(default=lambda request: None)
    seen: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def env(self) -> dict[str, str]:
        """Variables with which S3 clients talk through it."""
        return _env(self._server.server_address[1])


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = _body(self)
            request = Request(
                number=len(proxy.seen) + 1, method=self.command, path=self.path, headers=dict(self.headers)
            )
            proxy.seen.append(request)
            fault = proxy.fault(request) or Fault()
            if fault.status:
                self.send_response(fault.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self._send(answer, answer.read(), fault)
            finally:
                connection.close()

        def _send(self, answer: http.client.HTTPResponse, content: bytes, fault: Fault) -> None:
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(key, value)
            length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if fault.flips and content:
                content = bytes([content[0] ^ 1]) + content[1:]
            is_cut = 0 <= fault.cut_bytes < len(content)
            content = content[: fault.cut_bytes] if is_cut else content
            step = 1 << 16 if fault.pause_s else max(1, len(content))
            for start in range(0, len(content), step):
                time.sleep(fault.pause_s)
                self.wfile.write(content[start : start + step])
            if is_cut:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - names of http.server

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
            """Nothing is printed."""

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client left

    return Handler


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    return handler.rfile.read(int(handler.headers.get("Content-Length", "0")))


def status(code: int, *, times: int = 10**9, of: str = "") -> Rule:
    """Answer with a status, so many times, where the request's path holds `of`."""
    return _times(Fault(status=code), times, of)


def cut_after(num_bytes: int, *, times: int = 10**9, of: str = "") -> Rule:
    """Cut the connection after so many bytes of an answer."""
    return _times(Fault(cut_bytes=num_bytes), times, of, method="GET")


def flip(*, times: int = 10**9, of: str = "") -> Rule:
    """Change one bit of an answer."""
    return _times(Fault(flips=True), times, of, method="GET")


def slow(pause_s: float, *, of: str = "") -> Rule:
    """Pause before every 64 KiB."""
    return _times(Fault(pause_s=pause_s), 10**9, of)


def _times(fault: Fault, times: int, of: str, *, method: str = "") -> Rule:
    left = [times]
    mutex = threading.Lock()

    def rule(request: Request) -> Fault | None:
        with mutex:
            if left[0] <= 0 or of not in request.path or (method and request.method != method):
                return None
            left[0] -= 1
            return fault

    return rule


def _env(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": _LETTERS,
        "AWS_SECRET_ACCESS_KEY": _LETTERS,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
