"""How a new head finds the workers of an earlier one: by what they registered, their sockets and their spools."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, is_alive
from windlass.tune.executors.channel import BadMessageError, Message, decode_line, from_message
from windlass.tune.executors.local.detached import registration_path, spool_path
from windlass.tune.trial import Resources

__all__ = ["Registration", "connect", "end_worker", "make_sockets_folder", "read_registrations", "read_spool", "remove"]

_END_S = 10.0
_PAUSE_S = 0.005
_MAX_FOLDER = 70
_MAX_DIGITS = 12
_KINDS = (
    ("slot", str),
    ("process", str),
    ("template", str),
    ("socket", str),
    ("variables", dict),
    ("is_single", bool),
    ("stacks", int),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker wrote of itself."""

    slot: str
    process: ProcessId
    template: ProcessId | None
    socket: str
    variables: dict[str, str]
    is_single: bool
    stacks: int
    trial: str
    attempt: int
    resources: Resources

    @property
    def is_alive(self) -> bool:
        """Whether the worker lives."""
        return is_alive(self.process)


def read_registrations(folder: str) -> Iterator[Registration]:
    """Every worker that registered in a sweep's folder, dead ones included."""
    for path in sorted(Path(folder, "spools").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            yield _registration(read_json(path))


def _registration(data: Mapping[str, Any]) -> Registration:
    """What a file says; raises ValueError, KeyError, TypeError or AttributeError where it is damaged."""
    is_whole = all(type(data[name]) is kind for name, kind in _KINDS) and data["slot"].isdecimal()
    if not is_whole or len(data["slot"]) > _MAX_DIGITS:
        raise ValueError("a value is of another type")
    if type(data["trial"] or "") is not str or type(data["attempt"] or 0) is not int:
        raise ValueError("its trial is none")
    shape = data["resources"] or {"bundles": [], "strategy": "PACK"}
    return Registration(
        slot=data["slot"],
        process=ProcessId.parse(data["process"]),
        template=ProcessId.parse(data["template"]) if data["template"] != "None" else None,
        socket=data["socket"],
        variables=data["variables"],
        is_single=data["is_single"],
        stacks=data["stacks"],
        trial=data["trial"] or "",
        attempt=data["attempt"] or 0,
        resources=Resources(bundles=tuple(shape["bundles"]), strategy=shape["strategy"]),
    )


def connect(registration: Registration) -> socket.socket | None:
    """A connection to a worker, which it takes when it next looks; None where it is gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(registration.socket)
    except OSError:
        connection.close()
        return None
    return connection


def read_spool(folder: str, slot: str) -> list[Message]:
    """What a dead worker said that no head heard; a torn last line is none, nor is a damaged one."""
    try:
        lines = spool_path(folder, slot).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines[:-1]:
        with contextlib.suppress(BadMessageError):
            message = decode_line(line)
            if message["type"] != "hello":
                from_message(message)
            found.append(message)
    return found


def remove(folder: str, registration: Registration) -> None:
    """Remove the files of a dead worker."""
    spool = spool_path(folder, registration.slot)
    for path in (spool, registration_path(folder, registration.slot), Path(registration.socket)):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(registration.socket))


def end_worker(registration: Registration, *, grace_s: float = 0.0) -> None:
    """Wait so long for a worker's end, kill it and its group, and wait until it is gone, and its template if it is idle."""
    deadline = time.monotonic() + grace_s
    while registration.is_alive and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    deadline = time.monotonic() + _END_S
    while registration.is_alive and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(registration.process.pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def make_sockets_folder() -> str:
    """A fresh folder, readable by this user alone, whose name leaves room for a socket's (108 bytes; unix(7))."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="windlass-", dir=usual if len(usual) < _MAX_FOLDER else "/tmp")  # noqa: S108 - mkdtemp
