"""Beaker's official client, with a time limit for every operation.

Without this module it retries an unreachable server forever, sets no time limit, and asks the package index for a
newer version of itself. Here every call is made inside `deadline(...)`: gRPC and HTTP get the time that is left, and a
call to an unreachable server fails after `PATIENCE_S`. Only this module and `errors` import `beaker`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import requests
from beaker import Beaker, beaker_pb2, beaker_pb2_grpc, exceptions
from beaker._service_client import RpcMethod
from beaker.config import Config
from requests.exceptions import ConnectionError as HttpConnectionError
from requests.exceptions import ConnectTimeout, Timeout
from urllib3.exceptions import NewConnectionError

from windlass.backends.beaker import decoding as plain_values
from windlass.backends.beaker.account import BeakerAccount
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.version import VERSION

__all__ = ["CONNECT_S", "PATIENCE_S", "BeakerClient", "Deadline", "deadline"]

CONNECT_S = 8.0
"""Longest wait for a connection."""

PATIENCE_S = 6.0
"""Longest wait for a server that was reached and then stopped responding."""

_SECOND_TRY_S = 1.0
_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_TOO_MANY = 429

_logger = logging.getLogger("windlass.beaker")
_logger.addHandler(logging.NullHandler())  # the client's warnings about its retries do not concern the user
_now: ContextVar[Deadline | None] = ContextVar("windlass_beaker_deadline", default=None)


@dataclass(slots=True, kw_only=True)
class Deadline:
    """Deadline of a request to Beaker.

    Attributes:
        what: the request, as `doing WHAT`.
        ends_at: on the monotonic clock.
        away_since: when the server was first unreachable; None while it responds.
    """

    what: str
    ends_at: float
    limit_s: float
    away_since: float | None = None

    def left(self) -> float:
        """Return the seconds left; raises UnreachableError when none are left."""
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise self.too_slow()
        return left_s

    def too_slow(self) -> UnreachableError:
        """Return the error for a request that got no response in time."""
        message = f"Beaker did not respond within {self.limit_s:g} s: {self.what}"
        return UnreachableError(message, hint="try again later", code="beaker-unreachable")

    def note_away(self, address: str, why: object) -> None:
        """Record that the server is unreachable; raises UnreachableError if the outage is too long."""
        moment = time.monotonic()
        if self.away_since is None:
            self.away_since = moment
        elif moment - self.away_since >= PATIENCE_S:
            raise unreachable(address, str(why))


@contextlib.contextmanager
def deadline(what: str, limit_s: float) -> Iterator[Deadline]:
    """Limit the total time of all requests that this thread makes inside the block."""
    own = Deadline(what=what, ends_at=time.monotonic() + limit_s, limit_s=limit_s)
    token = _now.set(own)
    try:
        yield own
    finally:
        _now.reset(token)


def unreachable(address: str, why: str) -> UnreachableError:
    """Return the error for a server that does not respond."""
    words = " ".join(why.split())[:300]
    hint = "check the address (BEAKER_CONFIG, ~/.beaker/config.yml) and that you are on its network"
    return UnreachableError(f"cannot connect to Beaker at {address}: {words}", hint=hint, code="beaker-unreachable")


class BeakerClient(Beaker):
    """Beaker client for one account; thread-safe.

    Attributes:
        messages, errors, decoding: modules that are imported only with it.
    """

    logger = _logger
    MAX_RETRIES = 3
    BACKOFF_FACTOR = 0.5  # type: ignore[assignment]  # seconds between attempts to reach the server
    messages = beaker_pb2
    errors = exceptions
    decoding = plain_values

    def __init__(self, account: BeakerAccount, *, limit_s: float) -> None:
        self._calls: _Calls | None = None
        self._limit_s = limit_s
        self._local = threading.local()
        self._lock = threading.Lock()
        config = Config(
            user_token=account.token,
            agent_address=account.agent_address,
            rpc_address=account.rpc_address,
            default_org=account.default_org or None,
            default_workspace=account.default_workspace or None,
        )
        super().__init__(config, check_for_upgrades=False, user_agent=f"windlass/{VERSION}")

    @property
    def service(self) -> Any:
        """Return the generated stub with deadlines; root certificates are read again for each connection."""
        with self._lock:
            if self._calls is None:
                self._channel = grpc.secure_channel(
                    self.config.rpc_address,
                    grpc.ssl_channel_credentials(_roots()),
                    options=[
                        ("grpc.max_send_message_length", self.RPC_MAX_SEND_MESSAGE_LENGTH),
                        ("grpc.max_receive_message_length", self.RPC_MAX_RECEIVE_MESSAGE_LENGTH),
                    ],
                )
                stub = beaker_pb2_grpc.BeakerStub(self._channel)  # type: ignore[no-untyped-call]
                self._calls = _Calls(stub, self.config.rpc_address, self.time_left)
            return self._calls

    @contextlib.contextmanager
    def http_session(self) -> Iterator[requests.Session]:
        """Yield this thread's session."""
        if getattr(self._local, "session", None) is None:
            self._local.session = _Session(self.config.agent_address, self.time_left)
        yield self._local.session

    def rpc(self, name: str, request: Any, *, is_idempotent: bool | None = None) -> Any:
        """Make a call for which the client has no suitable method; reads and idempotent calls are retried."""
        return self.workload.rpc_request(RpcMethod[Any](getattr(self.service, name)), request, retriable=is_idempotent)

    def pages(self, name: str, request: Any) -> Iterator[Any]:
        """Yield the pages of a listing, one reply each."""
        return self.workload.rpc_paged_request(RpcMethod[Any](getattr(self.service, name)), request)

    def metadata(self) -> list[tuple[str, str]]:
        """Return the metadata for a call made directly on the stub."""
        return list(self.workload._rpc_call_metadata)

    def is_timeout(self, error: Exception) -> bool:
        """Return True if a stream ended because it reached its deadline."""
        return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    def is_cut(self, error: Exception) -> bool:
        """Return True if a stream was cut and can be requested again."""
        if not isinstance(error, grpc.Call):
            return False
        is_reset = error.code() is grpc.StatusCode.INTERNAL and "RST_STREAM" in (error.details() or "")
        return is_reset or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

    def time_left(self) -> Deadline:
        """Return the deadline of this thread's request, or a new one outside of a request."""
        known = _now.get()
        if known is not None:
            return known
        return Deadline(what="a question", ends_at=time.monotonic() + self._limit_s, limit_s=self._limit_s)

    def close(self) -> None:
        """Cancel the calls in progress and close the connections."""
        self._calls = None
        super().close()  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Do nothing: the official client would close connections here, which can block forever when Python exits."""


def _roots() -> bytes | None:
    """Return the trusted root certificates; None for grpc's own. Raises PreconditionError."""
    named = os.environ.get(_ROOTS)
    try:
        return Path(named).read_bytes() if named else None
    except OSError as error:
        message = f"{_ROOTS} names {named}, which cannot be read: {error.strerror}"
        raise PreconditionError(message, hint=f"unset {_ROOTS}, or correct it", code="beaker-config") from error


class _Calls:
    """Proxy for the generated stub that adds deadlines to all calls."""

    def __init__(self, stub: Any, address: str, time_left: Callable[[], Deadline]) -> None:
        self._stub = stub
        self._address = address
        self._time_left = time_left
        self._is_connected = False

    def __getattr__(self, name: str) -> _Call:
        return _Call(getattr(self._stub, name), self)

    def begin(self) -> Deadline:
        """Connect if necessary, and return the deadline for a call; raises UnreachableError."""
        left = self._time_left()
        left.left()
        if not self._is_connected:
            self._connect(min(CONNECT_S, left.left()))
        return left

    def fail(self, error: grpc.RpcError, left: Deadline) -> None:
        """Raise UnreachableError if an error means that a retry cannot succeed; otherwise do nothing."""
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNAVAILABLE:
            left.note_away(self._address, error.details() if isinstance(error, grpc.Call) else error)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise left.too_slow() from error

    def _connect(self, limit_s: float) -> None:
        """Check that the server responds, using a call that needs no token.

        The call is tried twice, in case the server is restarting.
        """
        ends_at, why = time.monotonic() + limit_s, "no response"
        for pause_s in (_SECOND_TRY_S, 0.0):
            try:
                self._stub.GetUser(beaker_pb2.GetUserRequest(), timeout=max(0.1, ends_at - time.monotonic()))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    why = str(error.details())
                    time.sleep(pause_s)
                    continue
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    break
            self._is_connected = True  # any response will do: the call had no token
            return
        raise unreachable(self._address, why)


class _Call:
    """Stub method whose calls, including streams, end at the deadline."""

    def __init__(self, method: Any, calls: _Calls) -> None:
        self._call = method
        self._calls = calls

    @property
    def _method(self) -> bytes:
        return bytes(self._call._method)

    def __call__(self, request: Any, metadata: Any = None) -> Any:
        left = self._calls.begin()
        try:
            reply = self._call(request, metadata=metadata, timeout=left.left())
        except grpc.RpcError as error:
            self._calls.fail(error, left)
            raise
        left.away_since = None
        return reply


class _Session(requests.Session):
    """HTTP session with deadlines."""

    def __init__(self, address: str, time_left: Callable[[], Deadline]) -> None:
        super().__init__()
        self._address = address
        self._time_left = time_left

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        """Like `requests.Session.request`, but retry until the deadline if the request was surely not carried out."""
        left = self._time_left()
        while True:
            if isinstance(options.get("data"), io.IOBase):
                options["data"].seek(
                    0
                )  # the client would send the file again from where it stopped, which truncates it
            try:
                reply = self._once(left, method, url, *args, **options)
            except HttpConnectionError as error:
                if not _is_unsent(error):
                    raise
                time.sleep(_SECOND_TRY_S)
                continue
            left.away_since = None
            if reply.status_code != _TOO_MANY:
                return reply
            time.sleep(min(left.left(), _wished_pause_s(reply)))

    def _once(self, left: Deadline, method: str, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        left_s, asked = left.left(), options.get("timeout")
        reading_s = min(left_s, asked) if isinstance(asked, (int, float)) else left_s
        try:
            return super().request(method, url, *args, **{**options, "timeout": (min(CONNECT_S, left_s), reading_s)})
        except ConnectTimeout as error:
            raise unreachable(self._address, "no connection") from error
        except HttpConnectionError as error:
            left.note_away(self._address, _reason(error))
            raise
        except Timeout as error:
            if time.monotonic() >= left.ends_at:
                raise left.too_slow() from error
            raise


def _wished_pause_s(reply: requests.Response) -> float:
    """Return how many seconds an overloaded server asks clients to wait."""
    said = reply.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() else _SECOND_TRY_S


def _is_unsent(error: HttpConnectionError) -> bool:
    """Return True if no connection was made, so that nothing was sent."""
    return isinstance(getattr(error.args[0] if error.args else None, "reason", None), NewConnectionError)


def _reason(error: HttpConnectionError) -> str:
    """Return an error's message without the address, which the callers add."""
    return str(getattr(error.args[0] if error.args else None, "reason", error)).rpartition(": ")[2]
