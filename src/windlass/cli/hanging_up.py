"""Handling of a closed terminal (SIGHUP) in a foreground sweep, whose output is then written to a file."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Self

__all__ = ["HangUp"]


_SIGNAL_WITHIN_S = 1.0
"""Wait this long for SIGHUP, since a write can fail before the signal arrives."""


class HangUp:
    """Context manager that handles SIGHUP, unless it is ignored (`nohup`).

    On SIGHUP the process sends itself SIGTERM, which a sweep's head treats as a request to stop.

    Attributes:
        came: whether the terminal was closed.
    """

    def __init__(self, log: Path) -> None:
        self.came = False
        self._log = log
        self._has_asked = False
        self._had_terminal = any(os.isatty(own) for own in (1, 2))  # false once the terminal is closed
        self._before: Any = signal.SIG_IGN

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGHUP)
        if self._before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._before)

    def ask(self) -> None:
        """Send SIGTERM to this process if the terminal was closed before a handler was installed. Idempotent."""
        if self.came and not self._has_asked and callable(signal.getsignal(signal.SIGTERM)):
            self._has_asked = True
            signal.raise_signal(signal.SIGTERM)

    def explains(self, error: OSError) -> bool:
        """Return whether a write failed because the terminal was closed. Blocks for up to a second.

        A process that ignores SIGHUP (`nohup`), or that its shell has disowned, gets no signal; its output then goes to
        the file all the same.
        """
        deadline = time.monotonic() + _SIGNAL_WITHIN_S
        while not self.came and error.errno == errno.EIO and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self.came and error.errno == errno.EIO and self._had_terminal:
            self._take(signal.SIGHUP, None)
        return self.came

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.came:
            return
        self.came = True
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for own in (1, 2):  # a closed terminal fails every write
            os.dup2(descriptor, own)
        os.close(descriptor)
        self.ask()
