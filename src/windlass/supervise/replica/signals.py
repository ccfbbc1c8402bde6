"""Signals as events of a supervisor's loop: nothing happens in a handler."""

from __future__ import annotations

import signal
import socket

from windlass.supervise.fencing.guard import FORWARDED

__all__ = ["SignalQueue"]


class SignalQueue:
    """The signals that reach this process, to be read from `socket` when it is readable."""

    def __init__(self) -> None:
        self._waker, self.socket = socket.socketpair()
        self._waker.setblocking(False)
        self.socket.setblocking(False)

    def listen(self) -> None:
        """From now on hear of ended children and of what the guard forwards, which it has blocked until now."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def take(self) -> list[int]:
        """Numbers of the signals since the last call, each once; ended children last.

        A scheduler may signal the code together with its supervisor: that the node has to go explains the code's end.
        """
        return sorted(set(self.socket.recv(4096)), key=lambda number: (number == signal.SIGCHLD, number))
