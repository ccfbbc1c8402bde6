"""The way between an executor and a worker: JSON messages in both directions, over whatever carries them.

Every value of `executors.protocol` that travels has a message: `{"type": "reported", "trial": ..., ...}`.
"""

from __future__ import annotations

import json
import select
import socket
from dataclasses import fields
from typing import Any, Protocol

from windlass.core.json_text import decode_json
from windlass.tune.executors.protocol import End, Ended, Event, Go, Halt, Order, Reported, Saved, Start, Started
from windlass.tune.trial import Resources

__all__ = ["Channel", "ChannelClosed", "Leave", "Message", "SocketChannel", "encode_line", "from_message", "to_message"]

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel(Protocol):
    """A worker's way to its executor; one thread uses it."""

    def send(self, message: Message) -> None:
        """Hand over one message; may block.

        Raises:
            ChannelClosed: the other side is gone.
        """

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; blocks up to `timeout_s` (None: for ever; 0: not at all). None: there was none.

        Raises:
            ChannelClosed: the other side is gone, and everything it said was received.
        """


Leave: Message = {"type": "leave"}
"""Tells a worker to end, for there will be no more trials."""

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_line(message: Message) -> bytes:
    """A message as a line of ASCII."""
    return _encode(message).encode("ascii") + b"\n"


_TYPES: dict[str, type] = {
    "start": Start,
    "go": Go,
    "halt": Halt,
    "started": Started,
    "reported": Reported,
    "saved": Saved,
    "ended": Ended,
}
_NAMES = {type_: name for name, type_ in _TYPES.items()}
_FIELDS = {type_: tuple(field.name for field in fields(type_)) for type_ in _NAMES}


def to_message(value: Start | Order | Event) -> Message:
    """The JSON form of a value of the protocol."""
    message: Message = {"type": _NAMES[type(value)]}
    for name in _FIELDS[type(value)]:
        message[name] = getattr(value, name)
    if type(value) is Start:
        message["resources"] = {"bundles": value.resources.bundles, "strategy": value.resources.strategy}
    return message


def from_message(message: Message) -> Any:
    """The value of a message; raises KeyError for one that has no value, such as `leave`."""
    arguments = message.copy()
    type_ = _TYPES[arguments.pop("type")]
    if type_ is Ended:
        arguments["how"] = End(arguments["how"])
    elif type_ is Start:
        shape = arguments["resources"]
        arguments["resources"] = Resources(bundles=tuple(shape["bundles"]), strategy=shape["strategy"])
    return type_(**arguments)


class SocketChannel:
    """JSON lines over a connected stream socket, which blocks."""

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
        """The next line."""
        while True:
            end = self._received.find(b"\n")
            if end >= 0:
                line = bytes(self._received[:end])
                del self._received[: end + 1]
                message: Message = decode_json(line)
                return message
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
