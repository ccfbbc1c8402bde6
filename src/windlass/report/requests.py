"""Requests from the supervisor to user code (stop, save a checkpoint), read from the control file and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from windlass.core.json_text import read_json

__all__ = ["LOOK_EVERY_S", "Requests"]

LOOK_EVERY_S = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Requests:
    """Newest requests, read from the control file at most every 50 ms.

    Args:
        path: the control file, `{"stop": bool, "checkpoint": number, "deadline": seconds or null, "reason": text}`,
            replaced atomically by the supervisor; None if there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._content: dict[str, Any] = {}
        self._was_signalled = False
        self._is_listening = False

    @property
    def is_stop_wanted(self) -> bool:
        """Return whether the code should save and exit."""
        self._look()
        return self._was_signalled or bool(self._content.get("stop"))

    @property
    def checkpoint(self) -> int:
        """Return the number of the newest request to save; 0 before the first."""
        self._look()
        number = self._content.get("checkpoint", 0)
        return number if isinstance(number, int) else 0

    @property
    def deadline(self) -> float | None:
        """Return the wall time at which this job will be ended, or None."""
        self._look()
        deadline = self._content.get("deadline")
        return float(deadline) if isinstance(deadline, (int, float)) else None

    def listen(self) -> bool:
        """Treat SIGTERM and SIGUSR1 as requests to stop, unless other code handles them; idempotent.

        Returns:
            Whether this call installed the handlers: only the first one in the main thread does.
        """
        if self._is_listening or threading.current_thread() is not threading.main_thread():
            return False
        self._is_listening = True
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)
        return True

    def stop_listening(self) -> None:
        """Restore the default action of the signals, unless other code handles them by now."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._on_signal:
                with contextlib.suppress(ValueError):  # not the main thread: the handler stays
                    signal.signal(number, signal.SIG_DFL)
        self._is_listening = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._was_signalled = True

    def _look(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            status = os.stat(str(self._path))
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen == self._seen:
                return
            content = read_json(self._path)
        except (OSError, ValueError):
            return  # missing, or the shared file system fails: earlier requests remain valid
        if isinstance(content, dict):
            self._seen, self._content = seen, content
