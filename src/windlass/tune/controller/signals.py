"""SIGINT and SIGTERM of a head: the first is a request, the second ends at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

__all__ = ["HeadSignals"]

_ASKS = (signal.SIGINT, signal.SIGTERM)


class HeadSignals:
    """A context manager; in another thread than the main one it changes nothing (a debugger has that thread then).

    Attributes:
        asked: name of the signal that came; empty for none.
    """

    def __init__(self) -> None:
        self.asked = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _ASKS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
