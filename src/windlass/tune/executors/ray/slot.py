"""The head's side of one slot: the actor's handle, the orders it has not taken yet, and what was heard from it."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any

from windlass.core.json_text import decode_json
from windlass.tune.executors.channel import Message, to_message
from windlass.tune.executors.protocol import Order, StartAttempt
from windlass.tune.executors.ray.mailbox import Numbered
from windlass.tune.executors.ray.slot_actor import SlotFacts
from windlass.tune.trial import Resources

if TYPE_CHECKING:
    from windlass.tune.executors.ray.checkpoint_transfer import CheckpointTransfer

__all__ = ["RaySlot", "Reply", "SlotState"]

RETRY_S = 0.5
"""Between two calls of an actor that is out of reach for now."""

Reply = tuple["RaySlot", str, "Future[Any]"]
"""A slot, the name of the actor's method, and what came of the call."""


class SlotState(Enum):
    """Where a slot is; it only goes down this list, but for IDLE and BUSY."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GONE = "gone"


class RaySlot:
    """One actor as its head sees it. Calls return at once; replies come by `deliver`, on a thread of Ray's."""

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
        self.courier: CheckpointTransfer | None = None
        self.trial, self.attempt = "", 0
        self.idle_since = 0.0
        self.silent_until = 0.0
        self.heard = 0
        self._number, self._wait_s, self._deliver = number, wait_s, deliver
        self._orders: deque[Numbered] = deque()
        self._num_orders = 0
        self._num_sent = 0
        self._num_calls = 0
        self._waiting: list[StartAttempt | Order] = []

    @property
    def is_up(self) -> bool:
        """Whether the actor has answered, and is not gone."""
        return self.facts is not None and self.state is not SlotState.GONE

    @property
    def runs(self) -> bool:
        """Whether an attempt is assigned to it and has not ended."""
        return bool(self.trial)

    def assign(self, start: StartAttempt) -> None:
        """Give it an attempt; goes out with the next flush once the actor is up."""
        self.trial, self.attempt = start.trial, start.attempt
        if self.is_up:
            self.state = SlotState.BUSY
        self.tell(start)

    def joined(self, facts: SlotFacts, courier: CheckpointTransfer | None) -> None:
        """The actor is up; a slot that does not see the sweep's storage has a courier."""
        self.facts, self.courier = facts, courier
        self.state = SlotState.BUSY if self.runs else SlotState.IDLE
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            self.tell(order)

    def release(self, now: float) -> None:
        """Its attempt is over."""
        self.trial, self.attempt = "", 0
        self.idle_since = now
        if self.is_up:
            self.state = SlotState.IDLE

    def tell(self, order: StartAttempt | Order) -> None:
        """Give an order, after those before it."""
        if not self.is_up:
            self._waiting.append(order)
        elif self.courier is None:
            self.queue(order)
        else:
            self.courier.tell(order)

    def queue(self, order: StartAttempt | Order) -> None:
        """Put an order into the next call."""
        self._num_orders += 1
        line = json.dumps(to_message(order), separators=(",", ":")).encode("ascii")
        self._orders.append((self._num_orders, line))

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the actor."""
        future = getattr(self.actor, method).remote(*arguments).future()
        future.add_done_callback(lambda done: self._deliver((self, method, done)))

    def flush(self) -> None:
        """See that one call waits at the actor, and that it has every order."""
        if not self.is_up or (self._num_calls and self._num_sent == self._num_orders):
            return
        if time.monotonic() < self.silent_until:
            return
        self._num_calls += 1
        self._num_sent = self._num_orders
        self.call("exchange", self._number, self.heard, list(self._orders), self._wait_s)

    def returned(self) -> None:
        """An exchange is back, whatever came of it."""
        self._num_calls -= 1

    def resend(self) -> None:
        """An exchange may not have arrived: its orders go again with the next one, in a moment."""
        self._num_sent = 0
        self.silent_until = time.monotonic() + RETRY_S

    def hear(self, taken: int, messages: list[Numbered]) -> list[Message]:
        """The messages that are new; orders up to `taken` are done with."""
        while self._orders and self._orders[0][0] <= taken:
            self._orders.popleft()
        found = [decode_json(line) for number, line in messages if number > self.heard]
        if messages:
            self.heard = max(self.heard, messages[-1][0])
        return found
