"""Workers that outlive their head: channel, registration, spool, and takeover by a new head.

While a head is connected, messages go over the socket, and the newest are kept in memory. When the head is gone, these
and later messages are written to `spools/<slot>.jsonl`, and the trial continues without waiting for answers. A head
that connects to the worker's socket receives all of them again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, identify, is_alive
from windlass.tune.executors.channel import (
    BadMessageError,
    ChannelClosed,
    Message,
    SocketChannel,
    decode_line,
    encode_line,
    from_message,
)
from windlass.tune.trial import Resources

__all__ = [
    "DetachedChannel",
    "Registration",
    "connect",
    "end_worker",
    "make_sockets_folder",
    "read_registrations",
    "read_spool",
    "registration_path",
    "remove",
    "spool_path",
]


_NUM_KEPT = 4096
"""Number of kept messages; more than a worker may send ahead, so no unwritten message is dropped."""


def registration_path(folder: str, slot: str) -> Path:
    """Return the path of a worker's registration, which contains its process, trial and socket."""
    return Path(folder, "spools", f"{slot}.json")


def spool_path(folder: str, slot: str) -> Path:
    """Return the path of a worker's spool, which contains the messages it sent while there was no head."""
    return Path(folder, "spools", f"{slot}.jsonl")


class DetachedChannel:
    """Channel for a worker that can outlive its head; implements `WorkerChannel`.

    Args:
        connection: socket to the head that started this worker.
        facts: data for the registration besides the running trial.
        sockets: folder with a short path, for this worker's socket.
        linger_s: seconds without a head after which the trial is halted and the worker ends.
    """

    def __init__(
        self, connection: socket.socket, folder: str, slot: str, facts: dict[str, Any], *, sockets: str, linger_s: float
    ) -> None:
        self._head: SocketChannel | None = SocketChannel(connection)
        self._folder, self._slot, self._linger_s = folder, slot, linger_s
        path = os.path.join(sockets, f"{slot}.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(4)
        self._facts = {**facts, "slot": slot, "process": str(identify(os.getpid())), "socket": path}
        self._kept: deque[Message] = deque(maxlen=_NUM_KEPT)
        self._running: Message | None = None
        self._lost_at = 0.0
        self._has_given_up = False
        self._spool = -1
        self._register()

    def _register(self) -> None:
        start = self._running or {}
        what = {name: start.get(name) for name in ("trial", "attempt", "resources")}
        path = registration_path(self._folder, self._slot)
        write_json(path, {**self._facts, **what}, is_durable=False)

    # ---------------------------------------------------------------------------------------------------- messages

    def send(self, message: Message) -> None:
        """Send a message to the head or, if there is none, append it to the spool."""
        if self._has_given_up and message["type"] == "ended" and message["how"] == "halted":
            message |= {"how": "lost", "error": f"no head came back within {self._linger_s:g} s"}
        self._keep(message)
        if self._head is None:
            self._accept(0.0)
        elif not self._try_send(message):
            self._lose_head()
        if message["type"] == "ended":
            self._running = None

    def _keep(self, message: Message) -> None:
        if message["type"] == "hello":
            return
        if len(self._kept) == _NUM_KEPT and self._head is None:
            self._kept = deque(self._kept, maxlen=None)  # no head has received them yet
        self._kept.append(message)
        if self._head is None:
            self._write([message])

    def _try_send(self, message: Message) -> bool:
        assert self._head is not None
        try:
            self._head.send(message)
        except ChannelClosed:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message or, without a head, an answer that lets the trial continue."""
        while True:
            if self._head is not None:
                try:
                    message = self._head.receive(timeout_s)
                except ChannelClosed:
                    self._lose_head()
                    continue
                return self._note(message)
            if self._running is None:
                self._wait_for_head()
                continue
            if self._accept(0.0):
                continue
            return None if timeout_s is not None else self._answer()

    def _note(self, message: Message | None) -> Message | None:
        if message is not None and message["type"] == "start":
            self._kept.clear()
            self._running = message
            self._register()
        return message

    def _answer(self) -> Message:
        """Return the answer that a head usually gives, which is to continue.

        After too long without a head, the answer is to save and end.
        """
        assert self._running is not None
        to = {"trial": self._running["trial"], "attempt": self._running["attempt"]}
        if time.monotonic() - self._lost_at > self._linger_s:
            self._has_given_up = True
            return {"type": "halt", "saves": True, **to}
        return {"type": "go", "credit": 1, "upto": 0, "saves": False, **to}

    # ------------------------------------------------------------------------------------------------------- heads

    def _lose_head(self) -> None:
        self._head = None
        self._lost_at = time.monotonic()
        self._write(list(self._kept))

    def _write(self, messages: list[Message]) -> None:
        if self._spool < 0:
            path = spool_path(self._folder, self._slot)
            self._spool = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        lines = b"".join(map(encode_line, messages))
        os.write(self._spool, lines)
        os.fsync(self._spool)

    def _wait_for_head(self) -> None:
        """Wait for a head while no trial runs; raise ChannelClosed if none connects in time."""
        left_s = self._lost_at + self._linger_s - time.monotonic()
        if self._has_given_up or left_s <= 0 or not self._accept(left_s):
            raise ChannelClosed("no head came back")

    def _accept(self, timeout_s: float) -> bool:
        """Accept a head that has connected, and send it all kept messages; return whether there was one."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return False
        connection, _ = self._listener.accept()
        self._head = SocketChannel(connection)
        hello = {"type": "hello", "pid": os.getpid(), "stacks": self._facts["stacks"]}
        if not all(self._try_send(message) for message in (hello, *self._kept)):
            self._head = None
            return False
        os.close(self._spool)
        self._spool = -1
        spool_path(self._folder, self._slot).unlink(missing_ok=True)
        self._kept = deque(self._kept, maxlen=_NUM_KEPT)
        return True

    def close(self) -> None:
        """Close the sockets; messages that no head has received stay in the spool."""
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._facts["socket"])
        if self._spool < 0:
            registration_path(self._folder, self._slot).unlink(missing_ok=True)


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
    """Facts about a worker that it writes to a file, for the next head."""

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
        """Return whether the worker is still running."""
        return is_alive(self.process)


def read_registrations(folder: str) -> Iterator[Registration]:
    """Yield every worker registered in a sweep's folder, even if it is dead."""
    for path in sorted(Path(folder, "spools").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            yield _registration(read_json(path))


def _registration(data: Mapping[str, Any]) -> Registration:
    """Parse a registration; raise ValueError, KeyError, TypeError or AttributeError if it is damaged."""
    is_whole = all(type(data[name]) is kind for name, kind in _KINDS) and data["slot"].isdecimal()
    if not is_whole or len(data["slot"]) > _MAX_DIGITS:
        raise ValueError("a value has the wrong type")
    if type(data["trial"] or "") is not str or type(data["attempt"] or 0) is not int:
        raise ValueError("invalid trial")
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
    """Connect to a worker, which accepts at its next check; return None if the worker is gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(registration.socket)
    except OSError:
        connection.close()
        return None
    return connection


def read_spool(folder: str, slot: str) -> list[Message]:
    """Return the messages in the spool of a dead worker; incomplete and damaged lines are skipped."""
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
    """Wait up to `grace_s` for a worker to exit, then kill its process group, and wait until it has ended."""
    deadline = time.monotonic() + grace_s
    while registration.is_alive and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    deadline = time.monotonic() + _END_S
    while registration.is_alive and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(registration.process.pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def make_sockets_folder() -> str:
    """Create a private folder with a short path, because a socket's path has at most 108 bytes (unix(7))."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="windlass-", dir=usual if len(usual) < _MAX_FOLDER else "/tmp")  # noqa: S108 - mkdtemp
