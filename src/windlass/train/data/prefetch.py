"""A thread that makes things ahead of the one that uses them, in order, and forgets nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Runs an iterator in a thread, at most `depth` items ahead.

    An error of the iterator comes out of `next`, at its place in the order. `close` ends the thread and waits for it;
    idempotent.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name="windlass-prefetch", daemon=True)
        self._thread.start()

    def next(self) -> T:
        """The next item; blocks until it is there. Raises StopIteration at the end."""
        item, error = self._queue.get()
        if error is not None:
            self.close()
            raise error
        assert item is not None
        return item

    def close(self) -> None:
        """End the thread; what was made ahead is dropped."""
        self._is_closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)  # the thread may wait for room
            except queue.Empty:
                continue

    def _run(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._queue.put((item, None))
                if self._is_closed.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  (it is raised where the items are taken)
            self._queue.put((None, error))
        else:
            self._queue.put((None, StopIteration()))
