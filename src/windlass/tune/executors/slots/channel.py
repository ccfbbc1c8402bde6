"""A worker's channel through files: it reads its orders, and writes what it says to a spool of its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from windlass.core.clock import SystemClock
from windlass.record.journal import JournalReader, JournalWriter
from windlass.tune.executors.channel import ChannelClosed, Message
from windlass.tune.executors.slots.files import HEARTBEAT, HELLO, MESSAGE, ORDER, SlotFiles

__all__ = ["FileChannel"]

_SOON_S = 0.01
_LATE_S = 0.25
_FRESH_EVERY_S = 2.0
_BEAT_EVERY_S = 15.0


class FileChannel:
    """The way between one life of a worker and whatever head there is; outlives heads.

    Args:
        incarnation: of this life: sorts after those of earlier ones.
        on_first_end: called once, after the first trial's end was told.
    """

    def __init__(
        self, places: SlotFiles, slot: str, incarnation: str, *, on_first_end: Callable[[], None] = lambda: None
    ) -> None:
        self.incarnation = incarnation
        self._orders = JournalReader(places.orders(slot))
        self._spool = JournalWriter(places.spools, f"{slot}.{incarnation}", SystemClock())
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._fresh_at = 0.0
        self._is_over = False
        self._on_first_end: Callable[[], None] | None = on_first_end
        self._write(HELLO, host=socket.gethostname(), pid=os.getpid())
        threading.Thread(target=self._beat, name="windlass-beat", daemon=True).start()

    def send(self, message: Message) -> None:
        """Append to the spool; on disk when this returns."""
        self._write(MESSAGE, message=message)
        if message["type"] == "ended" and self._on_first_end is not None:
            then, self._on_first_end = self._on_first_end, None
            then()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next order that is meant for this life; see `WorkerChannel`. Looks every 10 to 250 ms."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _SOON_S
        while not self._waiting:
            self._look()
            if self._waiting:
                break
            left_s = pause_s if deadline is None else min(pause_s, deadline - time.monotonic())
            if left_s <= 0:
                return None
            time.sleep(left_s)
            pause_s = min(pause_s * 1.3, _LATE_S)
        message = self._waiting.pop(0)
        if message["type"] == "start":
            self.send({"type": "started", "trial": message["trial"], "attempt": message["attempt"]})
        return message

    def close(self) -> None:
        """Give the spool back."""
        with self._lock:
            self._is_over = True
            self._spool.close()

    def _look(self) -> None:
        now = time.monotonic()
        is_fresh = now >= self._fresh_at  # a network file system shows new bytes to those who ask anew
        if is_fresh:
            self._fresh_at = now + _FRESH_EVERY_S
        for record in self._orders.poll(is_fresh=is_fresh):
            if record.kind == ORDER and record.data.get("to") == self.incarnation:
                self._waiting.append(record.data["message"])

    def _write(self, kind: str, **data: Any) -> None:
        with self._lock:
            if self._is_over:
                raise ChannelClosed("the spool is closed")
            try:
                self._spool.append(kind, **data)
            except OSError as error:
                raise ChannelClosed(f"the spool cannot be written: {error}") from error

    def _beat(self) -> None:
        """Show that the process lives, whatever its trial is doing."""
        try:
            while True:
                time.sleep(_BEAT_EVERY_S)
                self._write(HEARTBEAT)
        except ChannelClosed:
            return
