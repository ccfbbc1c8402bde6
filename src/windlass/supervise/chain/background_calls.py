"""Background calls: work that may hang, done in a child process so that the supervisor's event loop continues.

If a scheduler's controller is busy or down, replies take many seconds or never arrive. A loop that waited for them would
not read output of user code, not receive messages from other replicas, and not react to `stop`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import time
from typing import Any, Callable, Protocol

from windlass.core.json_text import decode_json
from windlass.core.process import descendants, send_signal
from windlass.supervise.linux import set_process_name

__all__ = ["Answer", "BackgroundCalls", "ForkedCalls", "ImmediateCalls"]

Answer = dict[str, Any]
"""Result of a call, JSON values only."""

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that a scheduler sends to every process of a job; the child ignores them."""

_READ_BYTES = 65536


class BackgroundCalls(Protocol):
    """Executor of calls that may take a long time, one at a time."""

    @property
    def is_pending(self) -> bool:
        """Return whether a call is still running."""

    @property
    def helpers(self) -> set[int]:
        """Return the pids of the processes that execute the pending call."""

    def send(self, work: Callable[[], Answer], take: Callable[[Answer], None]) -> None:
        """Execute `work` and pass its answer to `take`; `take` is not called if the work is lost."""

    def settle(self, wait_s: float) -> None:
        """Wait at most `wait_s` for the pending call, then abandon it."""


class ImmediateCalls:
    """Executor that runs each call immediately in this process."""

    is_pending = False

    @property
    def helpers(self) -> set[int]:
        """See `BackgroundCalls.helpers`."""
        return set()

    def send(self, work: Callable[[], Answer], take: Callable[[Answer], None]) -> None:
        """See `BackgroundCalls.send`."""
        take(work())

    def settle(self, wait_s: float) -> None:
        """See `BackgroundCalls.settle`."""


class ForkedCalls:
    """Executor that runs each call in a fork of this process.

    Args:
        again: called after a call has returned or was lost.
    """

    def __init__(self, selector: selectors.BaseSelector, again: Callable[[], None]) -> None:
        self._selector, self._again = selector, again
        self._take: Callable[[Answer], None] | None = None
        self._pipe, self._pid, self._received = -1, 0, b""

    @property
    def is_pending(self) -> bool:
        """See `BackgroundCalls.is_pending`."""
        return self._pid > 0

    @property
    def helpers(self) -> set[int]:
        """See `BackgroundCalls.helpers`."""
        return {self._pid} - {0}

    def send(self, work: Callable[[], Answer], take: Callable[[Answer], None]) -> None:
        """See `BackgroundCalls.send`; if the fork fails, the call is lost."""
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            return
        if pid == 0:
            try:
                _detach_child(writing)
                os.write(writing, json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(writing)
        self._pid, self._pipe, self._take, self._received = pid, reading, take, b""
        self._selector.register(reading, selectors.EVENT_READ, self._on_readable)

    def _on_readable(self) -> None:
        if self._read():
            self._again()

    def _read(self) -> bool:
        """Read the available bytes; return whether the call is finished."""
        piece = os.read(self._pipe, _READ_BYTES)
        self._received += piece
        if not piece:
            self._finish()
        return not piece

    def _finish(self, how: int = 0) -> None:
        """Reap the child and pass on its answer; a killed child has none."""
        self._selector.unregister(self._pipe)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):  # the supervisor reaps any child that ends
            os.waitpid(self._pid, how)
        content, take, self._take, self._pid = self._received, self._take, None, 0
        if take is not None and content:
            take(decode_json(content))

    def settle(self, wait_s: float) -> None:
        """See `BackgroundCalls.settle`."""
        deadline = time.monotonic() + wait_s
        while self._pid:
            poll = select.poll()
            poll.register(self._pipe, select.POLLIN)
            if poll.poll(max(0.0, 1000.0 * (deadline - time.monotonic()))):
                self._read()
            else:
                self._give_up()

    def _give_up(self) -> None:
        """Kill the pending call and discard its answer."""
        if self._pid:
            for pid in (self._pid, *descendants(self._pid)):
                send_signal(pid, signal.SIGKILL)
            self._received, self._take = b"", None
            self._finish(os.WNOHANG)  # it may hang in the kernel


def _detach_child(writing: int) -> None:
    """In the child: close all other descriptors, and ignore signals that are meant for other processes."""
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    set_process_name("windlass-call")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, writing):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
