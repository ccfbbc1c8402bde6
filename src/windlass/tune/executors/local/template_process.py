"""Handle that the head has on its template process: start it, prepare it, fork workers, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.process import send_signal
from windlass.tune.executors.channel import Message
from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.executors.protocol import OpeningInterruptedError

__all__ = ["IMPORT_LIMIT_S", "TemplateProcess", "ready_template"]

_MODULE = "windlass.tune.executors.local.template"
_END_S = 10.0
_LOOK_EVERY_MS = 250
IMPORT_LIMIT_S = 600.0
"""Time limit for importing the trainable; large libraries on slow shared disks take minutes."""


class TemplateProcess:
    """Handle for a template process; `wire` delivers its messages once it is ready.

    Args:
        work: the sweep's work, as JSON.
        facts: data for all workers.
    """

    def __init__(self, work: dict[str, Any], facts: dict[str, Any]) -> None:
        self._work, self._facts = work, facts
        self._process: subprocess.Popen[bytes] | None = None
        self.wire: LineConnection
        self.pid = 0

    def start(
        self, *, imports_here: bool = True, limit_s: float = IMPORT_LIMIT_S, is_asked: Callable[[], bool] = bool
    ) -> str:
        """Start the process and wait for its imports; return a reason if it is not safe to fork from.

        Args:
            limit_s: maximum time for the imports.
            is_asked: returns whether this process was asked to stop; called about four times a second.

        Raises:
            UsageError: the trainable's module, or one of `preload`, cannot be imported, or takes too long.
            OpeningInterruptedError: this process was asked to stop.
        """
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            _enlarge(end)
        argv = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
        )
        theirs.close()
        self.pid = self._process.pid
        self.wire = LineConnection(ours)
        prepare = {"type": "prepare", "work": self._work, "facts": self._facts, "sys_path": _sys_path()}
        self.wire.send({**prepare, "imports_here": imports_here})
        answer = self._wait_for_answer(time.monotonic() + limit_s, limit_s, is_asked)
        if answer["type"] == "broken":
            self.leave((), 0.0)
            self.end()
            raise UsageError(
                f"workers cannot import the trainable: {answer['kind']}\n{answer['error'].rstrip()}",
                hint="check that a new Python process can import the trainable's module",
                code="user-code-failed",
            )
        return str(answer["unsafe"])

    def _wait_for_answer(self, deadline: float, limit_s: float, is_asked: Callable[[], bool]) -> Message:
        assert self._process is not None
        while True:
            if is_asked():
                self._kill()
                raise OpeningInterruptedError("stopped while the trainable's module was imported")
            if time.monotonic() > deadline:
                self._kill()
                raise UsageError(
                    f"importing the trainable's module, or one of `preload`, took longer than {limit_s:g} s",
                    hint="find the slow import with `python -X importtime -m MODULE`, or wait longer: "
                    f"executor=tune.executors.Local(import_limit_s={2 * limit_s:g})",
                    code="user-code-failed",
                )
            poller = select.poll()
            poller.register(self.wire, select.POLLIN | (select.POLLOUT if self.wire.has_unsent else 0))
            poller.poll(_LOOK_EVERY_MS)
            self.wire.flush()
            for message in self.wire.receive():
                return dict(message)
            if self.wire.is_closed:
                code = self._process.wait()
                raise PreconditionError(
                    f"the template process of the workers exited with {code} while it imported the trainable",
                    hint="run the trainable's module by itself: `python -m MODULE`",
                    code="user-code-failed",
                )

    def _kill(self) -> None:
        """Kill the process, and all processes that its imports have started."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.wire.close()

    def fork(self, connection: socket.socket, order: Mapping[str, Any]) -> None:
        """Fork a worker with this socket.

        The wire then receives `forked`, and `exited` when the worker ends.
        """
        self.wire.send({"type": "fork", **order}, (connection.fileno(),))
        connection.close()

    def kill(self, pid: int) -> None:
        """Kill a worker and its process group."""
        self.wire.send({"type": "kill", "pid": pid})

    def leave(self, kill: Collection[int], grace_s: float) -> None:
        """Ask the process to exit, killing these workers at once and the others after `grace_s`."""
        self.wire.send({"type": "leave", "kill": list(kill), "grace_s": grace_s})

    def end(self, timeout_s: float = _END_S) -> None:
        """Wait for the process to exit, and kill it after `timeout_s`."""
        if self._process is None:
            return
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                self.wire.flush()
        if self._process.poll() is None:
            send_signal(self.pid, signal.SIGKILL)
            self._process.wait()
        self.wire.close()

    def abandon(self) -> None:
        """Leave the process running without this head."""
        if self._process is not None:
            self._process.returncode = 0  # it outlives this process, so do not wait for it
            self.wire.close()


def ready_template(
    work: dict[str, Any], facts: dict[str, Any], limit_s: float, is_asked: Callable[[], bool]
) -> TemplateProcess:
    """Start a template.

    If it is not safe to fork after its imports, workers do the imports.

    Raises:
        UsageError, OpeningInterruptedError: see `TemplateProcess.start`.
    """
    template = TemplateProcess(work, facts)
    if template.start(limit_s=limit_s, is_asked=is_asked):
        template.leave((), 0.0)
        template.end()
        template = TemplateProcess(work, facts)
        template.start(imports_here=False, limit_s=limit_s, is_asked=is_asked)
    return template


def _enlarge(end: socket.socket) -> None:
    """Enlarge the socket's buffers, because configurations are sent before a worker reads."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)


def _sys_path() -> list[str]:
    """Return this process's module search path, with the working directory in place of an empty entry."""
    return [entry or os.getcwd() for entry in sys.path]
