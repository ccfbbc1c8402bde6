"""What people are told while data is fetched for a plan: that it began, how far it is, and that all is here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from windlass.core.clock import Clock, SystemClock

__all__ = ["progress_of"]

_EVERY_S = 10.0


@contextmanager
def progress_of(what: str, log: Callable[[str], None], clock: Clock | None = None) -> Iterator[Callable[[int], None]]:
    """Gives what is to be called with the bytes of each piece, from any thread; nothing comes, nothing is told.

    Args:
        what: the data, as in "fetching WHAT".
        log: gets a line at the first piece, one every ten seconds, and one at the end.
    """
    transfer = _Transfer(what, log, clock or SystemClock())
    yield transfer.advance
    transfer.end()


class _Transfer:
    def __init__(self, what: str, log: Callable[[str], None], clock: Clock) -> None:
        self._what, self._log, self._clock = what, log, clock
        self._mutex = threading.Lock()
        self._num_bytes = 0
        self._began_at = self._told_at = 0.0

    def advance(self, num_bytes: int) -> None:
        with self._mutex:
            now = self._clock.monotonic()
            if not self._num_bytes:
                self._began_at = self._told_at = now
                self._log(f"fetching {self._what}")
            self._num_bytes += num_bytes
            if now - self._told_at >= _EVERY_S:
                self._told_at = now
                self._log(f"{self._what}: {self._text(now)}")

    def end(self) -> None:
        if self._num_bytes:
            self._log(f"{self._what} is here: {self._text(self._clock.monotonic())}")

    def _text(self, now: float) -> str:
        megabytes = self._num_bytes / 1e6
        return f"{megabytes:,.1f} MB, {megabytes / max(1e-3, now - self._began_at):,.1f} MB/s"
