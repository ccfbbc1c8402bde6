"""Calls that may hang for a while, made in a child process, so that a supervisor's loop goes on meanwhile.

A controller of a scheduler that is busy or away answers after many seconds or not at all; the loop that would wait for
it takes output from user code, hears the other replicas and obeys `stop`.
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
"""What comes back, JSON values only."""

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""A scheduler's notices go to every process of a job, and say nothing to this one."""

_READ_BYTES = 65536


class BackgroundCalls(Protocol):
    """Does work that may take long, one piece at a time."""

    @property
    def is_pending(self) -> bool:
        """Whether a piece of work has not come back."""

    @property
    def helpers(self) -> set[int]:
        """Processes that do it."""

    def send(self, work: Callable[[], Answer], take: Callable[[Answer], None]) -> None:
        """Do the work, then give its answer to `take`; nobody is called where the work was lost."""

    def settle(self, wait_s: float) -> None:
        """Wait for what is out, and give it up where that takes longer."""


class ImmediateCalls:
    """Does it at once."""

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
    """Does it in a fork of this process.

    Args:
        again: called when a piece of work came back or was lost.
    """

    def __init__(self, selector: selectors.BaseSelector, again: Callable[[], None]) -> None:
        self._selector, self._again = selector, again
        self._take: Callable[[Answer], None] | None = None
        self._pipe, self._pid, self._said = -1, 0, b""

    @property
    def is_pending(self) -> bool:
        """See `BackgroundCalls.is_pending`."""
        return self._pid > 0

    @property
    def helpers(self) -> set[int]:
        """See `BackgroundCalls.helpers`."""
        return {self._pid} - {0}

    def send(self, work: Callable[[], Answer], take: Callable[[Answer], None]) -> None:
        """See `BackgroundCalls.send`; work that cannot begin, as no process can be had, is lost."""
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            return
        if pid == 0:
            try:
                _stand_apart(writing)
                os.write(writing, json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(writing)
        self._pid, self._pipe, self._take, self._said = pid, reading, take, b""
        self._selector.register(reading, selectors.EVENT_READ, self._on_readable)

    def _on_readable(self) -> None:
        if self._read():
            self._again()

    def _read(self) -> bool:
        """Take what has come; whether that was the end."""
        piece = os.read(self._pipe, _READ_BYTES)
        self._said += piece
        if not piece:
            self._finish()
        return not piece

    def _finish(self, how: int = 0) -> None:
        """Take the child away, and its answer where it is whole; one that was killed gave none."""
        self._selector.unregister(self._pipe)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):  # the supervisor takes away any child that it sees end
            os.waitpid(self._pid, how)
        said, take, self._take, self._pid = self._said, self._take, None, 0
        if take is not None and said:
            take(decode_json(said))

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
        """End what is out; its answer is nobody's."""
        if self._pid:
            for pid in (self._pid, *descendants(self._pid)):
                send_signal(pid, signal.SIGKILL)
            self._said, self._take = b"", None
            self._finish(os.WNOHANG)  # it may hang in the kernel


def _stand_apart(writing: int) -> None:
    """In the child: hold nothing that others wait for the end of, and hear no signal that is meant for others."""
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
            with contextlib.suppress(OSError):  # the one by which they are listed
                os.close(int(name))
