"""What trials print, shown by the head as it comes: the logs are read, so trials are not slowed."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from windlass.tune.executors.output import log_path

__all__ = ["OutputTail"]

_LOOK_EVERY_S = 0.2
_MOST_BYTES = 1 << 16


class OutputTail:
    """Follows the logs of running trials.

    Args:
        names: of the log files.
        out: where lines go, each with the trial's id in front.
    """

    def __init__(self, folder: str, names: tuple[str, str], out: TextIO | None = None) -> None:
        self._folder = folder
        self._names = tuple(dict.fromkeys(names))
        self._out = out
        self._read: dict[str, list[int]] = {}
        self._looked_at = 0.0

    def began(self, trial: str) -> None:
        """Follow a trial from here on."""
        self._read[trial] = [_size(log_path(self._folder, trial, name)) for name in self._names]

    def ended(self, trial: str) -> None:
        """Show the rest, and follow it no more."""
        self._show(trial, is_end=True)
        self._read.pop(trial, None)

    def look(self) -> None:
        """Show what is new, a few times a second."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        for trial in self._read:
            self._show(trial)

    def _show(self, trial: str, *, is_end: bool = False) -> None:
        for number, name in enumerate(self._names):
            path = log_path(self._folder, trial, name)
            while _size(path) > self._read.get(trial, [0, 0])[number]:
                with open(path, "rb") as file:
                    file.seek(self._read[trial][number])
                    piece = file.read(_MOST_BYTES)
                end = len(piece) if is_end or len(piece) == _MOST_BYTES else piece.rfind(b"\n") + 1
                self._write(trial, piece[:end])
                self._read[trial][number] += end
                if end < len(piece) or not piece:
                    break

    def _write(self, trial: str, piece: bytes) -> None:
        out = self._out or sys.stderr
        for line in piece.decode(errors="backslashreplace").splitlines():
            out.write(f"({trial}) {line}\n")
        out.flush()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
