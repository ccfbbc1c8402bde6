"""The terminal of a head in the foreground is closed: what the process prints goes to a file from then on."""

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
"""A write may fail a moment before the signal that says why is there."""


class HangUp:
    """A context manager that takes SIGHUP, unless it is ignored (`nohup`).

    What listens to SIGTERM then is asked to end: a head takes that as a request.

    Attributes:
        came: whether the terminal is gone.
    """

    def __init__(self, log: Path) -> None:
        self.came = False
        self._log = log
        self._has_asked = False
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
        """Ask this process to end, if the terminal is gone and nothing listened when it went. Idempotent."""
        if self.came and not self._has_asked and callable(signal.getsignal(signal.SIGTERM)):
            self._has_asked = True
            signal.raise_signal(signal.SIGTERM)

    def explains(self, error: OSError) -> bool:
        """Whether a write failed because the terminal has just gone. Blocks for up to a second where that may be so."""
        deadline = time.monotonic() + _SIGNAL_WITHIN_S
        while not self.came and error.errno == errno.EIO and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.came

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.came:
            return
        self.came = True
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for own in (1, 2):  # a terminal that is gone refuses every word
            os.dup2(descriptor, own)
        os.close(descriptor)
        self.ask()
