"""What a slot says to its head, and is told: numbered both ways, so that calls may be lost, doubled or come late.

A message waits here until a head has it, and in a file until the slot's next trial begins: a new head hears the whole
of the attempt again. A head that is away stops nothing; the file is on the disk of the slot's own node.
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
"""A number that grows by one, and what is said: a line of JSON."""

AGE_S = 0.02
"""A message that nobody waits for is told at most so much later, together with others."""


class Mailbox:
    """Between one worker thread, which says and asks, and calls of the head, which bring and fetch."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
        self._changed = threading.Condition()
        self._orders: deque[bytes] = deque()
        self._num_orders = 0
        self._outbox: deque[Numbered] = deque()
        self.num_said = 0
        self._first_kept = 1
        self._is_urgent = False
        self._oldest_at = 0.0
        self._caller = 0
        self._spool, path = tempfile.mkstemp(prefix="windlass-spool-")
        os.unlink(path)  # it ends with this process, however that ends

    # ------------------------------------------------------------------------------------------------ the worker's side

    def say(self, message: bytes, *, is_urgent: bool = False) -> None:
        """Say one line; unless it is urgent it goes when the worker next asks, or AGE_S later."""
        with self._changed:
            if not self._outbox:
                self._oldest_at = time.monotonic()
            self.num_said += 1
            self._outbox.append((self.num_said, message))
            os.write(self._spool, message + b"\n")
            self._is_urgent = self._is_urgent or is_urgent
            if is_urgent or len(self._outbox) == 1:
                self._changed.notify_all()

    def next_order(self, timeout_s: float | None) -> bytes | None:
        """The next order; blocks up to `timeout_s` (None: for ever). Before it blocks, all that was said goes."""
        with self._changed:
            if not self._orders and timeout_s != 0:
                self._is_urgent = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._orders, timeout_s)
            self._is_urgent = self._is_urgent and bool(self._outbox)
            return self._orders.popleft() if self._orders else None

    def forget(self) -> None:
        """A new attempt begins: the head has what the last one said, for it would not begin another otherwise."""
        with self._changed:
            os.ftruncate(self._spool, 0)
            os.lseek(self._spool, 0, os.SEEK_SET)
            for _, message in self._outbox:
                os.write(self._spool, message + b"\n")
            self._first_kept = self.num_said + 1 - len(self._outbox)

    # -------------------------------------------------------------------------------------------------- the head's side

    def exchange(self, heard: int, orders: Sequence[Numbered], wait_s: float) -> tuple[int, list[Numbered]]:
        """Take new orders, drop what the head has heard, and give what was said since; blocks up to `wait_s`.

        A later call sends an earlier one home with nothing, so that one waits at most.

        Returns:
            The number of the newest order taken, and the messages.
        """
        with self._changed:
            self.heard_at = time.monotonic()
            self._take(orders)
            while self._outbox and self._outbox[0][0] <= heard:
                self._outbox.popleft()
            self._caller += 1
            mine = self._caller
            self._changed.notify_all()
            self._wait(mine, self.heard_at + wait_s)
            self.heard_at = time.monotonic()
            if mine != self._caller:
                return self._num_orders, []
            self._is_urgent = False
            return self._num_orders, list(self._outbox)

    def begin_again(self) -> int:
        """A new head: it hears everything since the current attempt began, and numbers its orders from 1.

        Orders of the old head that the worker has not taken are dropped, for the new one gives its own.

        Returns:
            What to give as `heard` first.
        """
        with self._changed:
            size = os.lseek(self._spool, 0, os.SEEK_CUR)
            lines = os.pread(self._spool, size, 0).splitlines()
            self._outbox = deque(enumerate(lines, self._first_kept))
            self._num_orders = 0
            self._orders.clear()
            self._caller += 1
            self._is_urgent = True
            self.heard_at = time.monotonic()
            self._changed.notify_all()
            return self._first_kept - 1

    def _take(self, orders: Sequence[Numbered]) -> None:
        for number, order in orders:
            if number == self._num_orders + 1:
                self._num_orders = number
                self._orders.append(order)

    def _wait(self, mine: int, until: float) -> None:
        """Until there is something to say at once, or something old, or the time is up, or a later call is here."""
        while mine == self._caller:
            now = time.monotonic()
            due = self._oldest_at + AGE_S if self._outbox else until
            if now >= until or (self._outbox and (self._is_urgent or now >= due)):
                return
            self._changed.wait(min(until, due) - now)
