"""A thread that makes things ahead of the one that uses them, in order, and forgets nothing."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")
_EXIT_WAIT_S = 10.0


class Prefetch(Generic[T]):
    """Runs an iterator in a thread, at most `depth` items ahead.

    An error of the iterator comes out of `next`, at its place in the order. `close` ends the thread and waits for it;
    idempotent. A program that ends without `close` ends the thread first: torch aborts the process when a thread of it is
    killed by the interpreter.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name="windlass-prefetch", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

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
        atexit.unregister(self._close_at_exit)
        self._end(float("inf"))

    def _close_at_exit(self) -> None:
        self._end(_EXIT_WAIT_S)

    def _end(self, limit_s: float) -> None:
        self._is_closed.set()
        deadline = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < deadline:
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
