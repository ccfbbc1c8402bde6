"""Checkpoints deleted in a thread: a folder of gigabytes takes seconds, and no trial shall wait for it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["Deletion"]

_NUM_PROBLEMS = 8


class Deletion:
    """Deletes one after another; the thread begins with the first.

    Args:
        drop: deletes a checkpoint by path or URL; a missing one is no error. None: `windlass.tune.storage.delete`.

    Attributes:
        problems: the newest of what could not be deleted, and why: it only takes room.
    """

    def __init__(self, drop: Callable[[str], None] | None = None) -> None:
        self._drop = drop
        self._paths: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.problems: deque[str] = deque(maxlen=_NUM_PROBLEMS)

    def take(self, paths: Iterable[str]) -> None:
        """Delete these, soon."""
        for path in paths:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="windlass-deletion", daemon=True)
                self._thread.start()
            self._paths.put(path)

    def close(self) -> None:
        """Wait until everything is deleted."""
        if self._thread is not None:
            self._paths.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        drop = self._drop
        if drop is None:
            from windlass.tune.storage import delete  # lazy: most sweeps delete nothing

            drop = delete
        while (path := self._paths.get()) is not None:
            try:
                drop(path)
            except Exception as error:  # noqa: BLE001 - a bucket has errors of its own, and the next one is deleted all the same
                self.problems.append(f"{path}: {error}")
