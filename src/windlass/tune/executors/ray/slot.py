"""Slot on Ray as its head sees it: the actor's handle, queued orders, and position in the messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any

from windlass.core.json_text import decode_json
from windlass.tune.executors.channel import Message, encode_message, to_message
from windlass.tune.executors.protocol import Order, StartAttempt
from windlass.tune.executors.ray.checkpoint_transfer import CheckpointTransfer
from windlass.tune.executors.ray.mailbox import Numbered
from windlass.tune.executors.ray.slot_actor import SlotFacts, SlotNotice
from windlass.tune.trial import Resources

__all__ = ["RaySlot", "Reply", "SlotState"]

RETRY_S = 0.5
"""Delay between two calls of a temporarily unreachable actor."""

Reply = tuple["RaySlot", str, "Future[Any]"]
"""Slot, name of the actor's method, and its future."""


class SlotState(Enum):
    """State of a slot.

    It only moves down this list, except between IDLE and BUSY.
    """

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GONE = "gone"


class RaySlot:
    """Handle for an actor.

    Calls return at once; replies go to `deliver`, on a Ray thread.
    """

    def __init__(
        self,
        name: str,
        actor: Any,
        resources: Resources,
        *,
        number: int,
        wait_s: float,
        deliver: Callable[[Reply], None],
        group: Any = None,
    ) -> None:
        self.name, self.actor, self.resources, self.group = name, actor, resources, group
        self.state = SlotState.STARTING
        self.facts: SlotFacts | None = None
        self.transfer: CheckpointTransfer | None = None
        self.notice: SlotNotice | None = None
        self.trial, self.attempt = "", 0
        self.idle_since = 0.0
        self.silent_until = 0.0
        self.received = 0
        self._number, self._wait_s, self._deliver = number, wait_s, deliver
        self._orders: deque[Numbered] = deque()
        self._num_orders = 0
        self._num_sent = 0
        self._num_calls = 0
        self._waiting: list[StartAttempt | Order] = []

    @property
    def is_up(self) -> bool:
        """Return whether the actor has answered and is not gone."""
        return self.facts is not None and self.state is not SlotState.GONE

    @property
    def runs(self) -> bool:
        """Return whether the slot has an attempt that has not ended."""
        return bool(self.trial)

    def assign(self, start: StartAttempt) -> None:
        """Assign an attempt, which is sent with the next `flush` once the actor is up."""
        self.trial, self.attempt = start.trial, start.attempt
        if self.is_up:
            self.state = SlotState.BUSY
        self.tell(start)

    def joined(self, facts: SlotFacts, transfer: CheckpointTransfer | None) -> None:
        """Mark the actor as up; `transfer` is set if the slot cannot access the sweep's storage."""
        self.facts, self.transfer = facts, transfer
        self.state = SlotState.BUSY if self.runs else SlotState.IDLE
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            self.tell(order)

    def release(self, now: float) -> None:
        """Release the slot after its attempt."""
        self.trial, self.attempt = "", 0
        self.idle_since = now
        if self.is_up:
            self.state = SlotState.IDLE

    def tell(self, order: StartAttempt | Order) -> None:
        """Send an order after all earlier orders."""
        if not self.is_up:
            self._waiting.append(order)
        elif self.transfer is None:
            self.queue(order)
        else:
            self.transfer.tell(order)

    def queue(self, order: StartAttempt | Order) -> None:
        """Queue an order for the next call."""
        self._num_orders += 1
        line = encode_message(to_message(order))
        self._orders.append((self._num_orders, line))

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the actor."""
        future = getattr(self.actor, method).remote(*arguments).future()
        future.add_done_callback(lambda done: self._deliver((self, method, done)))

    def flush(self) -> None:
        """Send every queued order, and keep one call pending at the actor."""
        if not self.is_up or (self._num_calls and self._num_sent == self._num_orders):
            return
        if time.monotonic() < self.silent_until:
            return
        self._num_calls += 1
        self._num_sent = self._num_orders
        self.call("exchange", self._number, self.received, list(self._orders), self._wait_s)

    def returned(self) -> None:
        """Record that a call of `exchange` has returned, whatever its result."""
        self._num_calls -= 1

    def resend(self) -> None:
        """Send the orders again with the next `exchange`, after a moment."""
        self._num_sent = 0
        self.silent_until = time.monotonic() + RETRY_S

    def receive(self, taken: int, messages: list[Numbered]) -> list[Message]:
        """Return the new messages, and drop the orders up to `taken`."""
        while self._orders and self._orders[0][0] <= taken:
            self._orders.popleft()
        found = [decode_json(line) for number, line in messages if number > self.received]
        if messages:
            self.received = max(self.received, messages[-1][0])
        return found
