"""Lines that say how far the making of tokens is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from windlass.core.phrases import size

__all__ = ["IngestProgress"]

_EVERY_S = 10.0


class IngestProgress:
    """Takes what ingestion tells and writes a line now and then; silent where all is done in a few seconds.

    Give one to each process: only the one that makes the tokens, while the others wait for it, is told anything.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        every_s: float = _EVERY_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._now = write or sys.stderr.write, every_s, now
        self._last_at = now()

    def __call__(self, num_done: int, num_bytes: int) -> None:
        """So many bytes of text are tokens now, of so many."""
        if self._now() - self._last_at < self._every_s:
            return
        self._last_at = self._now()
        self._write(f"making tokens: {size(num_done)} of {size(num_bytes)} of text\n")
