"""Channel for records from user code to the journal: a bounded queue, and a thread that empties it.

`put` costs microseconds, never blocks and never raises: records that do not fit, or cannot be written, are dropped and
counted. `write` is for the few records that must be on disk before training continues.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from windlass.core.clock import SystemClock
from windlass.core.errors import WindlassError
from windlass.core.process import identify
from windlass.record.journal import JournalWriter

__all__ = ["FLUSH_EVERY_S", "MAX_QUEUED", "Channel"]

FLUSH_EVERY_S = 0.1
MAX_QUEUED = 20_000
RETRY_AFTER_S = 5.0


class Channel:
    """Writer of this process's file in the run's journal.

    Args:
        folder: the run's journal folder.
        prefix: `<task>.<rank>`; the process is added to the writer's name (`.report-<pid>-<start ticks>`).
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.num_dropped = 0
        self._folder = folder
        self._prefix = prefix
        self._queue: deque[tuple[str, dict[str, Any]]] = deque()
        self._lock = threading.RLock()  # a signal handler may report while its thread is emptying the queue
        self._wake = threading.Event()
        self._is_running = False
        self._has_warned = False
        self._busy = 0
        self._retry_at = 0.0
        self._writer: JournalWriter | None = None

    def put(self, kind: str, data: dict[str, Any]) -> None:
        """Queue a record; it is written to the journal within about 100 ms."""
        if len(self._queue) >= MAX_QUEUED:
            self.num_dropped += 1
            self._warn_once(f"more than {MAX_QUEUED} records are waiting to be written")
            return
        self._queue.append((kind, data))
        if not self._wake.is_set():
            self._wake.set()
            if not self._is_running:
                self._start()

    def write(self, kind: str, **data: Any) -> None:
        """Write a record and everything queued before it; durable on return.

        Raises:
            OSError: the disk is full or the journal cannot be written.
            WindlassError: another process holds the file.
        """
        if self._busy == threading.get_ident():  # a signal handler interrupted our own write
            with contextlib.closing(JournalWriter(self._folder, self._name() + "-signal", SystemClock())) as writer:
                writer.append(kind, **data)
            return
        with self._lock:
            self._drain()
            self._append(kind, data, is_durable=True)

    def flush(self) -> None:
        """Write queued records; does not raise if the journal cannot be written."""
        if self._busy != threading.get_ident():
            with self._lock:
                self._drain()

    def sync(self) -> None:
        """Write queued records; durable on return.

        Raises:
            OSError: the journal cannot be synced to disk.
        """
        if self._busy == threading.get_ident():  # as in `write`; the interrupted write continues afterwards
            return
        with self._lock:
            self._drain()
            if self._writer is not None:
                self._writer.sync()

    def abandon(self) -> None:
        """In a forked child, abandon the file and the queue, which belong to the parent."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def close(self) -> None:
        """Write queued records and close the file."""
        with self._lock:
            self._drain()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _start(self) -> None:
        self._is_running = True
        thread = threading.Thread(target=self._run, name="windlass-report", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down: no new threads
            self.flush()
            self._wake.clear()
            self._is_running = False
            return
        atexit.register(self.flush)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # its children exit by os._exit, which skips atexit
            util.Finalize(None, self.flush, exitpriority=0)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            time.sleep(FLUSH_EVERY_S)
            self._wake.clear()
            self.flush()

    def _drain(self) -> None:
        is_pausing = time.monotonic() < self._retry_at
        for _ in range(len(self._queue)):
            try:
                kind, data = self._queue.popleft()
            except IndexError:  # a signal handler emptied it meanwhile
                return
            try:
                if is_pausing:
                    self.num_dropped += 1
                else:
                    self._append(kind, data, is_durable=False)
            except (OSError, WindlassError, ValueError) as error:
                self.num_dropped += 1
                self._retry_at, is_pausing = time.monotonic() + RETRY_AFTER_S, True
                self._warn_once(f"the journal cannot be written ({error})")

    def _append(self, kind: str, data: dict[str, Any], *, is_durable: bool) -> None:
        self._busy = threading.get_ident()
        try:
            if self._writer is None:
                self._writer = JournalWriter(self._folder, self._name(), SystemClock())
            self._writer.append(kind, is_durable=is_durable, **data)
        except BaseException:  # a signal handler may have raised in the middle: check the file again
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            raise
        finally:
            self._busy = 0

    def _name(self) -> str:
        process = identify(os.getpid())
        return f"{self._prefix}.report-{os.getpid()}-{process.start_ticks if process else 0}"

    def _warn_once(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"windlass: {reason}; metrics are being dropped, training continues\n")
