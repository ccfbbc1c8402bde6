"""Mailbox of a slot: numbered messages and orders, so that calls may be lost, repeated or late.

A message is kept in memory until a head has it, and in a file on the slot's node until the slot's next trial starts, so
that a new head receives the whole attempt again. The slot continues while it has no head.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence

__all__ = ["Mailbox", "Numbered"]

Numbered = tuple[int, bytes]
"""Sequence number and a line of JSON."""

AGE_S = 0.02
"""Delay for messages that are not urgent, so that several are sent together."""


class Mailbox:
    """Mailbox between one worker thread and the calls made by the head."""

    def __init__(self) -> None:
        self.last_call_at = time.monotonic()
        self._changed = threading.Condition()
        self._orders: deque[bytes] = deque()
        self._num_orders = 0
        self._outbox: deque[Numbered] = deque()
        self.num_put = 0
        self._first_kept = 1
        self._is_urgent = False
        self._oldest_at = 0.0
        self._caller = 0
        self._spool, path = tempfile.mkstemp(prefix="windlass-spool-")
        os.unlink(path)  # removed when this process ends, however it ends

    # ------------------------------------------------------------------------------------------------ the worker's side

    def put(self, message: bytes, *, is_urgent: bool = False) -> None:
        """Add a message.

        An urgent one is sent at once, others when the worker next waits, or AGE_S later.
        """
        with self._changed:
            if not self._outbox:
                self._oldest_at = time.monotonic()
            self.num_put += 1
            self._outbox.append((self.num_put, message))
            os.write(self._spool, message + b"\n")
            self._is_urgent = self._is_urgent or is_urgent
            if is_urgent or len(self._outbox) == 1:
                self._changed.notify_all()

    def next_order(self, timeout_s: float | None) -> bytes | None:
        """Return the next command from the sweep's head.

        Blocks up to `timeout_s` (None: forever), after all messages have been sent.
        """
        with self._changed:
            if not self._orders and timeout_s != 0:
                self._is_urgent = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._orders, timeout_s)
            self._is_urgent = self._is_urgent and bool(self._outbox)
            return self._orders.popleft() if self._orders else None

    def forget(self) -> None:
        """Start a new attempt by dropping the spool of the previous one, which the head has received."""
        with self._changed:
            os.ftruncate(self._spool, 0)
            os.lseek(self._spool, 0, os.SEEK_SET)
            for _, message in self._outbox:
                os.write(self._spool, message + b"\n")
            self._first_kept = self.num_put + 1 - len(self._outbox)

    # -------------------------------------------------------------------------------------------------- the head's side

    def exchange(self, received: int, orders: Sequence[Numbered], wait_s: float) -> tuple[int, list[Numbered]]:
        """Take new orders, drop messages that the head has received, and return newer ones.

        Blocks up to `wait_s`.

        A later call makes an earlier one return without messages, so at most one call waits.

        Returns:
            The number of the newest order taken, and the messages.
        """
        with self._changed:
            self.last_call_at = time.monotonic()
            self._take(orders)
            while self._outbox and self._outbox[0][0] <= received:
                self._outbox.popleft()
            self._caller += 1
            mine = self._caller
            self._changed.notify_all()
            self._wait(mine, self.last_call_at + wait_s)
            self.last_call_at = time.monotonic()
            if mine != self._caller:
                return self._num_orders, []
            self._is_urgent = False
            return self._num_orders, list(self._outbox)

    def begin_again(self) -> int:
        """Switch to a new head, which gets all messages of the current attempt and numbers its orders from 1.

        Orders of the old head that the worker has not taken are dropped; the new head sends its own.

        Returns:
            The first value for `received`.
        """
        with self._changed:
            size = os.lseek(self._spool, 0, os.SEEK_CUR)
            lines = os.pread(self._spool, size, 0).splitlines()
            self._outbox = deque(enumerate(lines, self._first_kept))
            self._num_orders = 0
            self._orders.clear()
            self._caller += 1
            self._is_urgent = True
            self.last_call_at = time.monotonic()
            self._changed.notify_all()
            return self._first_kept - 1

    def _take(self, orders: Sequence[Numbered]) -> None:
        for number, order in orders:
            if number == self._num_orders + 1:
                self._num_orders = number
                self._orders.append(order)

    def _wait(self, mine: int, until: float) -> None:
        """Wait for a message that is urgent or old, for the time limit, or for a later call."""
        while mine == self._caller:
            now = time.monotonic()
            due = self._oldest_at + AGE_S if self._outbox else until
            if now >= until or (self._outbox and (self._is_urgent or now >= due)):
                return
            self._changed.wait(min(until, due) - now)
