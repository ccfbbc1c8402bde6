"""What processes of a sweep say to one another, over sockets and through files; damaged in every way."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import zlib
from pathlib import Path
from typing import Any

from tests.hostile.mutations import mutated
from tests.hostile.trying import Target, write
from tests.tune.results.journals import asha_journal
from windlass.core.errors import WindlassError
from windlass.record.frames import encode
from windlass.tune.controller.journal.history import read_history
from windlass.tune.executors.channel import BadMessageError, ChannelClosed, SocketChannel, from_message, read_hello
from windlass.tune.executors.local.detached import read_registrations, read_spool, spool_path
from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.finding import row_of

__all__ = ["SWEEPS"]

_SAID = (
    {"type": "hello", "pid": 12, "stacks": 3},
    {"type": "reported", "trial": "00001", "attempt": 1, "metrics": {"loss": 0.5}, "saved": ""},
    {"type": "saved", "trial": "00001", "attempt": 1, "iteration": 3, "path": "a/b"},
    {"type": "ended", "trial": "00001", "attempt": 1, "how": "failed", "error": "x", "kind": "ValueError"},
)
_REGISTRATION = {
    "slot": "1",
    "process": "12:34:abc.def",
    "template": "12:34:abc.def",
    "socket": "/nowhere/s",
    "variables": {"A": "b"},
    "is_single": False,
    "stacks": 3,
    "trial": "00001",
    "attempt": 1,
    "resources": {"bundles": [{"CPU": 1}], "strategy": "PACK"},
}


def _lines(rng: random.Random) -> bytes:
    """What a worker says, one line of it damaged."""
    lines = [json.dumps(message).encode() for message in _SAID]
    place = rng.randrange(len(lines))
    lines[place] = mutated(lines[place], rng)
    return b"\n".join(lines) + b"\n"


def _wire(folder: Path, rng: random.Random) -> None:
    """The head's and the worker's end of a connection: messages, or the other side is gone."""
    content = _lines(rng)
    for read in (_read_wire, _read_channel):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            theirs.sendall(content[:150_000])
            theirs.shutdown(socket.SHUT_WR)
            for message in read(ours):
                assert type(message) is dict, message
                with contextlib.suppress(BadMessageError):
                    (read_hello if message["type"] == "hello" else from_message)(message)


def _read_wire(connection: socket.socket) -> list[Any]:
    wire, found = LineConnection(connection), []
    while not wire.is_closed:
        found += wire.receive()
    return found


def _read_channel(connection: socket.socket) -> list[Any]:
    channel, found = SocketChannel(connection), []
    with contextlib.suppress(ChannelClosed):
        while True:
            found.append(channel.receive(1.0))
    return found


def _spool(folder: Path, rng: random.Random) -> None:
    write(folder / "spools" / "1.json", mutated(json.dumps(_REGISTRATION).encode(), rng))
    for found in read_registrations(str(folder)):
        assert found.slot.isdecimal()
        assert isinstance(found.trial, str)
        assert isinstance(found.attempt, int)
        assert isinstance(found.is_alive, bool)
    write(Path(spool_path(str(folder), "1")), _lines(rng))
    for message in read_spool(str(folder), "1"):
        assert message["type"]
        if message["type"] != "hello":
            from_message(message)


_JOURNAL = asha_journal()


def _sweep(folder: Path, rng: random.Random) -> None:
    """A sweep's journal with whole frames of wrong facts; a reader reads it or says that it is damaged."""
    lines = []
    place = rng.randrange(min(60, len(_JOURNAL.records)))
    for number, record in enumerate(_JOURNAL.records[:60]):
        line = encode(record)
        if number == place:
            body = mutated(line[18:-1], rng)
            line = b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)
        lines.append(line)
    path = SweepFolder(folder).head_journal
    write(path, b"".join(lines))
    for read in (read_history, row_of):
        with contextlib.suppress(WindlassError):
            read(folder)


SWEEPS: dict[str, Target] = {"sweep wire": _wire, "sweep spool": _spool, "sweep journal": _sweep}
"""By what they read."""
