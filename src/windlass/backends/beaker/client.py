"""The genuine client of Beaker, with a time limit on everything it does.

By itself it repeats a call to a server that is away for ever, gives calls no limit, and asks the package index for a
newer version of itself. Here every call is made inside `deadline(...)`: gRPC gets what is left of it, HTTP too, and a
server that cannot be reached is given up after `PATIENCE_S`. Only this module and what it is handed to import `beaker`.
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
"""A server that was reached and is away is given so long to come back."""

_SECOND_TRY_S = 1.0
_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_TOO_MANY = 429

_logger = logging.getLogger("windlass.beaker")
_logger.addHandler(logging.NullHandler())  # the client's notes on its repetitions are no business of the user's
_now: ContextVar[Deadline | None] = ContextVar("windlass_beaker_deadline", default=None)


@dataclass(slots=True, kw_only=True)
class Deadline:
    """The time that a question has.

    Attributes:
        what: the question, as `doing WHAT`.
        ends_at: on the monotonic clock.
        away_since: when the server was first found away; None: it answers.
    """

    what: str
    ends_at: float
    limit_s: float
    away_since: float | None = None

    def left(self) -> float:
        """Seconds left; raises UnreachableError when there are none."""
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise self.too_slow()
        return left_s

    def too_slow(self) -> UnreachableError:
        """The error of a question that was not answered in time."""
        message = f"Beaker did not respond within {self.limit_s:g} s: {self.what}"
        return UnreachableError(message, hint="try again in a while", code="beaker-slow")

    def note_away(self, address: str, why: object) -> None:
        """Remember that the server is away; raises UnreachableError when it has been for too long."""
        moment = time.monotonic()
        if self.away_since is None:
            self.away_since = moment
        elif moment - self.away_since >= PATIENCE_S:
            raise unreachable(address, str(why))


@contextlib.contextmanager
def deadline(what: str, limit_s: float) -> Iterator[Deadline]:
    """Give everything asked inside this thread so much time together."""
    own = Deadline(what=what, ends_at=time.monotonic() + limit_s, limit_s=limit_s)
    token = _now.set(own)
    try:
        yield own
    finally:
        _now.reset(token)


def unreachable(address: str, why: str) -> UnreachableError:
    """The error of a server that nobody answers at."""
    words = " ".join(why.split())[:300]
    hint = "check the address (BEAKER_CONFIG, ~/.beaker/config.yml) and that you are on its network"
    return UnreachableError(f"cannot connect to Beaker at {address}: {words}", hint=hint, code="beaker-unreachable")


class BeakerClient(Beaker):
    """The client for one account; safe for several threads.

    Attributes:
        messages, errors, decoding: modules that only it imports.
    """

    logger = _logger
    MAX_RETRIES = 3
    BACKOFF_FACTOR = 0.5  # type: ignore[assignment]  # seconds; what is away is looked for every second
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
        """The generated stub, whose calls end in time; roots are read anew, grpc itself reads them once per process."""
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
        """A session of this thread."""
        if getattr(self._local, "session", None) is None:
            self._local.session = _Session(self.config.agent_address, self.time_left)
        yield self._local.session

    def rpc(self, name: str, request: Any, *, is_idempotent: bool | None = None) -> Any:
        """Make one call that the client has no good method for; repeated where it reads, or is idempotent."""
        return self.workload.rpc_request(RpcMethod[Any](getattr(self.service, name)), request, retriable=is_idempotent)

    def pages(self, name: str, request: Any) -> Iterator[Any]:
        """The pages of a listing."""
        return self.workload.rpc_paged_request(RpcMethod[Any](getattr(self.service, name)), request)

    def metadata(self) -> list[tuple[str, str]]:
        """Return the metadata of a call that is made on the stub itself."""
        return list(self.workload._rpc_call_metadata)

    def is_timeout(self, error: Exception) -> bool:
        """Return True when a stream ended because its time was over."""
        return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    def is_cut(self, error: Exception) -> bool:
        """Return True when a stream ended in the middle and can be requested again."""
        if not isinstance(error, grpc.Call):
            return False
        is_reset = error.code() is grpc.StatusCode.INTERNAL and "RST_STREAM" in (error.details() or "")
        return is_reset or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

    def time_left(self) -> Deadline:
        """The deadline of this thread's question; outside of one, a fresh one."""
        known = _now.get()
        if known is not None:
            return known
        return Deadline(what="a question", ends_at=time.monotonic() + self._limit_s, limit_s=self._limit_s)

    def close(self) -> None:
        """Break off what is under way, and let go of the connections."""
        self._calls = None
        super().close()  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Nothing: the client would close its connections here, which can wait for ever while Python ends."""


def _roots() -> bytes | None:
    """The authorities that are trusted, where not grpc's own; raises PreconditionError."""
    named = os.environ.get(_ROOTS)
    try:
        return Path(named).read_bytes() if named else None
    except OSError as error:
        message = f"{_ROOTS} names {named}, which cannot be read: {error.strerror}"
        raise PreconditionError(message, hint=f"unset {_ROOTS}, or correct it", code="beaker-config") from error


class _Calls:
    """Stands where the client expects the generated stub."""

    def __init__(self, stub: Any, address: str, time_left: Callable[[], Deadline]) -> None:
        self._stub = stub
        self._address = address
        self._time_left = time_left
        self._is_connected = False

    def __getattr__(self, name: str) -> _Call:
        return _Call(getattr(self._stub, name), self)

    def begin(self) -> Deadline:
        """Return the seconds that a call has, once there is a connection; raises UnreachableError."""
        left = self._time_left()
        left.left()
        if not self._is_connected:
            self._connect(min(CONNECT_S, left.left()))
        return left

    def fail(self, error: grpc.RpcError, left: Deadline) -> None:
        """Raise UnreachableError where an error means that there is no use in going on."""
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNAVAILABLE:
            left.note_away(self._address, error.details() if isinstance(error, grpc.Call) else error)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise left.too_slow() from error

    def _connect(self, limit_s: float) -> None:
        """Find out whether anybody is there, by a question that everybody may ask; twice, as one may meet a restart."""
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
            self._is_connected = True  # whatever it said of the question, which had no token
            return
        raise unreachable(self._address, why)


class _Call:
    """Method of the stub whose calls get what is left of the deadline; for a stream it is its longest life."""

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
    """HTTP that ends in time."""

    def __init__(self, address: str, time_left: Callable[[], Deadline]) -> None:
        super().__init__()
        self._address = address
        self._time_left = time_left

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        """See `requests.Session.request`; what was surely not carried out is asked again while there is time."""
        left = self._time_left()
        while True:
            if isinstance(options.get("data"), io.IOBase):
                options["data"].seek(0)  # the client sends a file again from where it stopped, and so cuts it off
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
    """Return the seconds that an overloaded server asks us to wait."""
    said = reply.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() else _SECOND_TRY_S


def _is_unsent(error: HttpConnectionError) -> bool:
    """Return True when there was no connection at all, so that nothing was sent."""
    return isinstance(getattr(error.args[0] if error.args else None, "reason", None), NewConnectionError)


def _reason(error: HttpConnectionError) -> str:
    """Return the message of an error without the address, which callers add."""
    return str(getattr(error.args[0] if error.args else None, "reason", error)).rpartition(": ")[2]
