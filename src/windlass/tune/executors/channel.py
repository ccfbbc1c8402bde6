"""Messages between an executor and a worker: JSON in both directions, over any kind of connection.

Every value of `executors.protocol` that is sent has a message: `{"type": "reported", "trial": ..., ...}`.
"""

from __future__ import annotations

import json
import select
import socket
from dataclasses import fields
from typing import Any, Protocol

from windlass.core.json_text import decode_object
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    Go,
    Halt,
    Order,
    SlotNoticed,
    StartAttempt,
    Work,
)
from windlass.tune.trainable.serialization import deserialize, serialize
from windlass.tune.trial import Resources

__all__ = [
    "MAX_LINE_BYTES",
    "BadMessageError",
    "ChannelClosed",
    "Leave",
    "Message",
    "SocketChannel",
    "WorkerChannel",
    "decode_line",
    "encode_line",
    "encode_message",
    "from_message",
    "read_hello",
    "rebuild_work",
    "to_message",
    "work_to_data",
]


Message = dict[str, Any]

MAX_LINE_BYTES = 256 << 20
"""Maximum length of a message; a pickled trainable in it can take several megabytes."""


class BadMessageError(ValueError):
    """Error for a line or record that contains no valid message."""


class ChannelClosed(Exception):
    """Error for a connection that the other side has closed."""


class WorkerChannel(Protocol):
    """Connection from a worker to its executor; only one thread uses it."""

    def send(self, message: Message) -> None:
        """Send one message. May block.

        Raises:
            ChannelClosed: the other side is gone.
        """

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None if none arrives.

        Blocks up to `timeout_s` (None: forever; 0: never).

        Raises:
            ChannelClosed: the other side is gone, and all its messages were received.
        """


Leave: Message = {"type": "leave"}
"""Order that ends a worker when there are no more trials."""

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_message(message: Message) -> bytes:
    """Encode a message as ASCII, without a line break."""
    return _encode(message).encode("ascii")


def encode_line(message: Message) -> bytes:
    """Encode a message as a line of ASCII."""
    return encode_message(message) + b"\n"


_TYPES: dict[str, type] = {
    "start": StartAttempt,
    "go": Go,
    "halt": Halt,
    "started": AttemptStarted,
    "reported": AttemptReported,
    "saved": AttemptSaved,
    "ended": AttemptEnded,
    "noticed": SlotNoticed,
}
_KINDS = (
    ("trial", str),
    ("attempt", int),
    ("metrics", dict),
    ("saved", str),
    ("iteration", int),
    ("path", str),
    ("error", str),
    ("kind", str),
)
_NAMES = {type_: name for name, type_ in _TYPES.items()}
_FIELDS = {type_: tuple(field.name for field in fields(type_)) for type_ in _NAMES}


def to_message(value: StartAttempt | Order | Event) -> Message:
    """Return a value of the protocol in JSON form."""
    message: Message = {"type": _NAMES[type(value)]}
    for name in _FIELDS[type(value)]:
        message[name] = getattr(value, name)
    if type(value) is StartAttempt:
        message["resources"] = {"bundles": value.resources.bundles, "strategy": value.resources.strategy}
    return message


def decode_line(line: bytes | bytearray) -> Message:
    """Decode the message in a line; raise BadMessageError if it is invalid."""
    try:
        message = decode_object(line, max_bytes=MAX_LINE_BYTES)
    except ValueError as error:
        raise BadMessageError(f"{bytes(line[:80])!r} is not a message: {error}") from error
    if not isinstance(message.get("type"), str):
        raise BadMessageError(f"{bytes(line[:80])!r} is not a message: it has no type")
    return message


def read_hello(message: Message) -> tuple[int, int]:
    """Return a worker's process id and its descriptor for stacks; raise BadMessageError if they are invalid."""
    pid, stacks = message.get("pid"), message.get("stacks")
    if type(pid) is not int or type(stacks) is not int:
        raise BadMessageError(f"{message!r:.200} is not a worker's `hello`")
    return pid, stacks


def from_message(message: Any) -> Any:
    """Return the value in a message; raise BadMessageError if it has none, as in `leave`."""
    try:
        arguments = message.copy()
        type_ = _TYPES[arguments.pop("type")]
        if any(name in arguments and not isinstance(arguments[name], kind) for name, kind in _KINDS):
            raise TypeError("a value has the wrong type")
        if type_ is AttemptEnded:
            arguments["how"] = AttemptOutcome(arguments["how"])
        elif type_ is StartAttempt:
            shape = arguments["resources"]
            arguments["resources"] = Resources(bundles=tuple(shape["bundles"]), strategy=shape["strategy"])
        return type_(**arguments)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessageError(f"{message!r:.200} is not a message of the protocol: {error!r:.100}") from error


class SocketChannel:
    """Channel that sends JSON lines over a connected, blocking stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._is_at_end = False

    def send(self, message: Message) -> None:
        """Write one line; blocks while the other side's buffer is full."""
        try:
            self._socket.sendall(encode_line(message))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next line as a message."""
        while True:
            end = self._received.find(b"\n")
            if end >= 0:
                line = bytes(self._received[:end])
                del self._received[: end + 1]
                try:
                    return decode_line(line)
                except BadMessageError as error:
                    raise ChannelClosed(str(error)) from error
            if len(self._received) > MAX_LINE_BYTES:
                raise ChannelClosed(f"a message is longer than {MAX_LINE_BYTES} bytes")
            if not self._fill(timeout_s):
                return None

    def _fill(self, timeout_s: float | None) -> bool:
        if timeout_s:
            readable, _, _ = select.select([self._socket], [], [], timeout_s)
            if not readable:
                return False
        try:
            piece = self._socket.recv(1 << 16, socket.MSG_DONTWAIT if timeout_s is not None else 0)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not piece:
            raise ChannelClosed("the other side has closed the connection")
        self._received += piece
        return True


def work_to_data(work: Work) -> dict[str, Any]:
    """Return the JSON form of a `Work`, with the trainable as an import path or pickled.

    Raises:
        WindlassError: the trainable cannot be serialized; see `serialize`.
    """
    data = {field.name: getattr(work, field.name) for field in fields(Work)}
    return data | {"trainable": serialize(work.trainable), "preload": list(work.preload), "options": dict(work.options)}


def rebuild_work(data: dict[str, Any]) -> Work:
    """Decode the output of `work_to_data`, importing the trainable's module."""
    return Work(**(data | {"trainable": deserialize(data["trainable"])}))
