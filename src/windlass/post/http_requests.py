"""Requests to a server of JSON over HTTP: replies are bounded before they are read, and a request has a deadline.

    server = JsonServer("http://127.0.0.1:8000", key_variable="VLLM_API_KEY", timeout_s=60.0)
    server.request("/v1/completions", {"prompt": [1, 2]}, max_bytes=1 << 20)

A key comes from an environment variable that settings name; it is sent to this server alone and is in no message. Redirects are not
followed and proxies are not used. Importable without torch.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from windlass.core.errors import PreconditionError, UnreachableError, UsageError
from windlass.core.json_text import decode_json
from windlass.core.version import VERSION

__all__ = ["JsonServer", "PendingRequest", "ServerError", "check_url"]

_MAX_DEPTH = 32
_MAX_MESSAGE = 300
_PIECE_BYTES = 1 << 16
_CONNECT_S = 10.0
_MAX_WAIT_S = 30.0
_RETRIED = {408, 429, 500, 502, 503, 504}


class ServerError(UnreachableError):
    """A server could not be reached, refused a request, or sent something else than an answer.

    Attributes:
        status: of the reply; 0: there was none, or it could not be read.
    """

    default_code = "remote-unreachable"

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class _RetryableError(ServerError):
    """The same request may succeed later."""

    wait_s = 0.0


def check_url(url: str) -> tuple[str, str]:
    """Return the scheme and host of a server's address, and its path without `/v1` and a slash at the end.

    Raises:
        UsageError: it is not an address over HTTP, or has a key or a query in it.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(f"`{url}` is not the address of a server", hint="write http://HOST:PORT", code="invalid-value")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        message = f"the address of {parts.hostname} has a user, a password or a query in it"
        hint = "write http://HOST:PORT, and name the environment variable of a key in `key_variable`"
        raise UsageError(message, hint=hint, code="invalid-value")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/").removesuffix("/v1")


class PendingRequest:
    """A request in progress, which another thread may end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def attach(self, connected: socket.socket | None) -> None:
        """Note the socket that the request waits for."""
        with self._lock:
            self._socket = connected
            is_ended = self.ended.is_set()
        if is_ended:
            self.end()

    def end(self) -> None:
        """End the request, also while it waits for the server; idempotent."""
        self.ended.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the current attempt."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)


class JsonServer:
    """A server, and how long and how often it is asked. Usable by several threads.

    Args:
        key_variable: environment variable whose value is sent as bearer token; empty: none is sent.
        timeout_s: longest time of an attempt, from connecting to the last byte.
        retries: attempts after the first, if the server cannot be reached, is overloaded or fails (408, 429, 5xx).
        backoff_s: wait before the first of them, which doubles each time; a server's `Retry-After` replaces it, at most 30 s.

    Raises:
        UsageError: an invalid address.
        PreconditionError: the variable is not set.
    """

    def __init__(
        self, url: str, *, key_variable: str = "", timeout_s: float = 600.0, retries: int = 4, backoff_s: float = 0.5
    ) -> None:
        self.address, self._path = check_url(url)
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._key = os.environ.get(key_variable, "") if key_variable else ""
        if key_variable and not self._key:
            message = f"the environment variable {key_variable}, which has the key of {self.address}, is not set"
            raise PreconditionError(message, hint=f"export {key_variable}=...", code="secret-missing")

    def request(
        self,
        path: str,
        body: object = None,
        *,
        max_bytes: int,
        request: PendingRequest | None = None,
        timeout_s: float = 0.0,
    ) -> Any:
        """Return the decoded reply to a POST request, or without a body to a GET request; None if it is empty. Blocks.

        Args:
            max_bytes: longest reply; a longer one is not read.
            request: ends the request from another thread.
            timeout_s: replaces the server's if it is not 0.

        Raises:
            ServerError: the server failed in all attempts, refused the request, or sent what is not JSON.
        """
        request = request or PendingRequest()
        for attempt in range(self._retries + 1):
            try:
                return self._attempt(path, body, max_bytes, request, timeout_s or self._timeout_s)
            except _RetryableError as error:
                last = error
            wait_s = min(last.wait_s or self._backoff_s * 2**attempt, _MAX_WAIT_S)
            if attempt == self._retries or request.ended.wait(wait_s):
                break
        tries = f", after {attempt + 1} attempts" if attempt else ""
        raise ServerError(f"{last.message}{tries}", hint=last.hint, status=last.status)

    def _attempt(self, path: str, body: object, max_bytes: int, request: PendingRequest, timeout_s: float) -> Any:
        place = f"{self.address}{self._path}{path}"
        start_s = time.monotonic()
        timer = threading.Timer(timeout_s, request.interrupt)
        timer.daemon = True
        connection = self._connection(timeout_s)
        try:
            connection.connect()
            request.attach(connection.sock)
            timer.start()
            headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": f"windlass/{VERSION}"}
            headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
            headers |= {} if body is None else {"Content-Type": "application/json"}
            data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
            connection.request("GET" if body is None else "POST", self._path + path, data, headers)
            reply = connection.getresponse()
            content = _read(reply, max_bytes, place)
            if time.monotonic() - start_s >= timeout_s or request.ended.is_set():  # what was read may be a part
                raise TimeoutError
            self._check_status(reply, content, place)
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_late = time.monotonic() - start_s >= timeout_s
            why = f"did not answer within {timeout_s:g} s" if is_late else f"broke the connection ({_text(error)})"
            raise _RetryableError(f"{place} {why}", hint="look whether the server runs, and at its log") from error
        finally:
            timer.cancel()
            request.attach(None)
            connection.close()
        if not content:
            return None
        try:
            return decode_json(content, max_bytes=max_bytes, max_depth=_MAX_DEPTH)
        except ValueError as error:
            what = self._clean(content[:40].decode("utf-8", "replace"))
            raise _RetryableError(f"{place} answered with something else than JSON: {what!r}") from error

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=min(timeout_s, _CONNECT_S))
        connect = connection.connect

        def connected() -> None:
            connect()
            connection.sock.settimeout(timeout_s)

        connection.connect = connected  # type: ignore[method-assign]  # a short limit for connecting alone
        return connection

    def _check_status(self, reply: http.client.HTTPResponse, content: bytes, place: str) -> None:
        status = reply.status
        if status in _RETRIED:
            error = _RetryableError(f"{place} answered {status}: {self._message(content)}", status=status)
            with contextlib.suppress(ValueError):
                error.wait_s = max(0.0, float(reply.headers.get("Retry-After", "")))
            raise error
        if 300 <= status < 400:
            message = f"{place} redirects elsewhere ({status}), and redirects are not followed"
            raise ServerError(message, hint="write the server's own address", status=status)
        if not 200 <= status < 300:
            raise ServerError(f"{place} answered {status}: {self._message(content)}", status=status)

    def _message(self, content: bytes) -> str:
        """Return what a failed reply says, in one line and without the key."""
        text = content.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, AttributeError):
            found = decode_json(content, max_depth=_MAX_DEPTH)
            error = found.get("error", found)
            text = str(error.get("message", text)) if isinstance(error, dict) else str(error)
        return self._clean(text)

    def _clean(self, text: str) -> str:
        text = text.replace(self._key, "***") if self._key else text
        return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:_MAX_MESSAGE]


def _read(reply: http.client.HTTPResponse, max_bytes: int, place: str) -> bytes:
    declared = reply.length  # None: the server sends pieces, or ends the connection
    content = bytearray()
    while (declared or 0) <= max_bytes and (piece := reply.read1(_PIECE_BYTES)):
        content += piece
        if len(content) > max_bytes:
            break
    if max(declared or 0, len(content)) > max_bytes:
        raise ServerError(f"{place} answered with more than {max_bytes} bytes")
    if declared is not None and len(content) < declared:
        raise http.client.IncompleteRead(bytes(content[:0]), declared - len(content))
    return bytes(content)


def _text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]
