"""A worker's channel that outlives its head: it goes on, keeps what it says, and lets another head take over.

While a head listens, everything goes over the socket and the newest messages are kept in memory. When it is gone they
are written to `spools/<slot>.jsonl`, with what follows, and the trial goes on without asking. A head that connects to
the worker's own socket is told all of it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from windlass.core.files import write_json
from windlass.core.process import identify
from windlass.tune.executors.channel import ChannelClosed, Message, SocketChannel

__all__ = ["DetachedChannel", "registration_path", "spool_path"]

_NUM_KEPT = 4096
"""More than any worker may send ahead, so nothing that a head did not write down is ever dropped."""


def registration_path(folder: str, slot: str) -> Path:
    """Who works in a slot, on what, and where to reach it."""
    return Path(folder, "spools", f"{slot}.json")


def spool_path(folder: str, slot: str) -> Path:
    """What a worker said while no head listened."""
    return Path(folder, "spools", f"{slot}.jsonl")


class DetachedChannel:
    """See `WorkerChannel`.

    Args:
        connection: to the head that made this worker.
        facts: what is registered of this worker besides what it runs.
        sockets: a folder whose name is short, for this worker's own socket.
        linger_s: a trial that has been without a head for so long is halted, and the worker ends.
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
        """Tell the head, or the spool."""
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
            self._kept = deque(self._kept, maxlen=None)  # nobody has heard them yet
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
        """The next message; without a head the answer that lets a trial go on."""
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
        """What a head would say: go on; once nobody has come for too long: save, and end."""
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
        lines = b"".join(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n" for message in messages)
        os.write(self._spool, lines)
        os.fsync(self._spool)

    def _wait_for_head(self) -> None:
        """Nothing runs: wait for a head, and end when none comes in time."""
        left_s = self._lost_at + self._linger_s - time.monotonic()
        if self._has_given_up or left_s <= 0 or not self._accept(left_s):
            raise ChannelClosed("no head came back")

    def _accept(self, timeout_s: float) -> bool:
        """Take a head that has connected, and tell it everything that is kept."""
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
        """The worker ends: what nobody heard stays in the spool."""
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._facts["socket"])
        if self._spool < 0:
            registration_path(self._folder, self._slot).unlink(missing_ok=True)
