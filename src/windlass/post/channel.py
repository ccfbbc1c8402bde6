"""Frames over a stream socket to a process that is started here; nothing blocks unless it is told how long."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from windlass.core.json_text import decode_object

__all__ = ["ChildProcess", "FrameStream", "read_bytes", "read_settings"]

_LENGTH = struct.Struct("!I")
_READ_BYTES = 1 << 20
_CLOSE_S = 5.0


class FrameStream:
    """Buffers of frames, each with its length first, around a socket that is read and written when it is ready.

    Several threads may send; one receives.

    Args:
        max_frame_bytes: a longer frame ends the stream, because the other side sends something else than frames.
    """

    def __init__(self, connection: socket.socket, *, max_frame_bytes: int = (1 << 32) - 1) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.is_closed = False
        self.is_broken = False
        """True after a frame that was too long."""
        self._max_frame_bytes = max_frame_bytes
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._unread = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Return whether `flush` has something left to send."""
        return bool(self._unsent) and not self.is_closed

    def send(self, frame: bytes) -> None:
        """Queue a frame and send as much as the socket takes."""
        with self._sending:
            self._unsent += _LENGTH.pack(len(frame)) + frame
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes."""
        with self._sending:
            while self.has_unsent:
                try:
                    del self._unsent[: self.connection.send(self._unsent)]
                except BlockingIOError:
                    return
                except OSError:  # the other side is gone, as reading will show too
                    self.is_closed = True

    def receive(self) -> list[bytes]:
        """Return the complete frames that have arrived; sets `is_closed` at the end of the stream."""
        is_ended = False
        while not is_ended:
            try:
                data = self.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            is_ended = not data
            self._unread += data
        self.is_closed |= is_ended
        return self._split()

    def wait(self, timeout_s: float) -> list[bytes]:
        """Return the frames that arrive within a time, and send what is queued meanwhile."""
        end_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            while True:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.has_unsent else 0)
                selector.register(self, events)
                ready = selector.select(max(0.0, end_s - time.monotonic()))
                selector.unregister(self)
                self.flush()
                if not ready or any(mask & selectors.EVENT_READ for _, mask in ready):
                    return self.receive()

    def _split(self) -> list[bytes]:
        frames, start = [], 0
        while len(self._unread) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, start)
            stop = start + _LENGTH.size + length
            self.is_broken = length > self._max_frame_bytes
            self.is_closed |= self.is_broken
            if self.is_broken or len(self._unread) < stop:
                break
            frames.append(bytes(self._unread[start + _LENGTH.size : stop]))
            start = stop
        del self._unread[:start]
        return frames


class ChildProcess:
    """A process that runs `main(descriptor)` of a module in its own session, and the stream to it.

    It may ask the kernel to be killed when its parent dies: the thread that starts it lives as long as this process.

    Args:
        settings: read by `read_settings` in the process.
        environment: variables besides those of this process.
        has_output: whether its standard output goes where that of this process goes.
    """

    def __init__(
        self,
        module: str,
        settings: Mapping[str, object],
        *,
        environment: Mapping[str, str] | None = None,
        has_output: bool = False,
        max_frame_bytes: int = (1 << 32) - 1,
    ) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", f"from {module} import main; raise SystemExit(main({theirs.fileno()}))"]
        with theirs:
            self._process = _STARTER.start(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=None if has_output else subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # an interrupt from the keyboard is for this process, which ends the other
            )
        with contextlib.suppress(OSError):  # it has ended, as reading will show
            ours.sendall(json.dumps(settings).encode() + b"\n")
        self.channel = FrameStream(ours, max_frame_bytes=max_frame_bytes)

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def close(self, timeout_s: float = _CLOSE_S) -> str:
        """Close the stream, wait for the end of the process or kill its group; return how it ended. Idempotent."""
        self.channel.connection.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class _Starter:
    """Thread that starts processes and lives as long as this process.

    The kernel sends the signal that a process asked for (PR_SET_PDEATHSIG) when the thread that started it ends.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[tuple[list[str], dict[str, Any], Future[subprocess.Popen[bytes]]]]

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process; blocks until it is started, and raises what `subprocess.Popen` raises."""
        with self._lock:
            if self._pid != os.getpid():  # threads do not survive a fork
                self._pid, self._wanted = os.getpid(), queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._wanted,), name="starter", daemon=True).start()
        found: Future[subprocess.Popen[bytes]] = Future()
        self._wanted.put((command, options, found))
        return found.result()

    @staticmethod
    def _run(
        wanted: queue.SimpleQueue[tuple[list[str], dict[str, Any], Future[subprocess.Popen[bytes]]]],
    ) -> None:
        while True:
            command, options, found = wanted.get()
            try:
                found.set_result(subprocess.Popen(command, **options))
            except BaseException as error:  # noqa: BLE001 - raised where the process is wanted
                found.set_exception(error)


_STARTER = _Starter()


def read_settings(connection: socket.socket) -> dict[str, Any]:
    """Return the settings of this process, sent by its `ChildProcess`."""
    with connection.makefile("rb", buffering=0) as file:
        return dict(decode_object(file.readline()))


def read_bytes(connection: socket.socket, count: int) -> bytes:
    """Return exactly this many bytes of a connection; blocks. Raises ConnectionError at its end."""
    found = b""
    while len(found) < count:
        data = connection.recv(count - len(found))
        if not data:
            raise ConnectionError("the connection ended")
        found += data
    return found
