"""Log lines while data is fetched for a plan: at the start, every ten seconds, and at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from windlass.core.clock import Clock, SystemClock
from windlass.core.phrases import size

__all__ = ["progress_of"]

_EVERY_S = 10.0


@contextmanager
def progress_of(what: str, log: Callable[[str], None], clock: Clock | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a thread-safe function to call with the size of each piece; without a call, nothing is logged.

    Args:
        what: name of the data, as in "fetching WHAT".
        log: called with a line at the first piece, every ten seconds, and at the end.
    """
    transfer = _Transfer(what, log, clock or SystemClock())
    yield transfer.advance
    transfer.end()


class _Transfer:
    def __init__(self, what: str, log: Callable[[str], None], clock: Clock) -> None:
        self._what, self._log, self._clock = what, log, clock
        self._mutex = threading.Lock()
        self._num_bytes = 0
        self._began_at = self._logged_at = 0.0

    def advance(self, num_bytes: int) -> None:
        with self._mutex:
            now = self._clock.monotonic()
            if not self._num_bytes:
                self._began_at = self._logged_at = now
                self._log(f"fetching {self._what}")
            self._num_bytes += num_bytes
            if now - self._logged_at >= _EVERY_S:
                self._logged_at = now
                self._log(f"{self._what}: {self._text(now)}")

    def end(self) -> None:
        if self._num_bytes:
            self._log(f"fetched {self._what}: {self._text(self._clock.monotonic())}")

    def _text(self, now: float) -> str:
        return f"{size(self._num_bytes)}, {size(self._num_bytes / max(1e-3, now - self._began_at))}/s"
