"""For a slot that does not see the sweep's storage: brings what a trial goes on from, fetches what it saves.

Events keep their order: what comes after a checkpoint waits until the head has it, so a controller never hears of a
checkpoint that it could not restore.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from windlass.tune.executors.protocol import AttemptReported, AttemptSaved, Event, Order, StartAttempt
from windlass.tune.executors.ray.shipping import Shipment, bring, fetch
from windlass.tune.executors.ray.slot import RaySlot

__all__ = ["CheckpointTransfer"]


class CheckpointTransfer:
    """Carries one checkpoint at a time for one slot."""

    def __init__(self, slot: RaySlot, disk: str, storage: str) -> None:
        self._slot, self._disk, self._storage = slot, disk, storage
        self._shipment: Shipment | None = None
        self._held: deque[Event] = deque()
        self._start: StartAttempt | None = None
        self._orders: list[StartAttempt | Order] = []

    # ------------------------------------------------------------------------------------------------ to the slot

    def tell(self, order: StartAttempt | Order) -> None:
        """Pass an order on; a start waits until what the attempt goes on from is there, and orders after it wait too."""
        if self._start is not None:
            self._orders.append(order)
        elif isinstance(order, StartAttempt) and order.restore_from:
            self._start = order
            self._shipment = bring(order.restore_from, f"{self._disk}/restored/{order.trial}-{order.attempt}")
            self._go_on(None)
        else:
            self._slot.queue(order)

    # ---------------------------------------------------------------------------------------------- from the slot

    def hear(self, events: list[Event]) -> list[Event]:
        """What the controller may hear of these and of earlier ones."""
        self._held += events
        return self._release()

    def returned(self, result: Any) -> list[Event]:
        """The slot's disk has done a step; returns what the controller may hear now."""
        self._go_on(result)
        return self._release()

    def failed(self) -> list[Event] | None:
        """The slot's disk did not do a step; None where an attempt cannot begin for it."""
        assert self._shipment is not None
        self._shipment.close()
        self._shipment = None
        if self._start is not None:
            return None
        event = _without_checkpoint(self._held.popleft())
        return ([] if event is None else [event]) + self._release()

    def give_up(self) -> list[Event]:
        """The slot is gone: what was held, without the checkpoints that stayed there."""
        if self._shipment is not None:
            self._shipment.close()
            self._shipment = None
        held = [_without_checkpoint(event) for event in self._held]
        self._held.clear()
        return [event for event in held if event is not None]

    def _release(self) -> list[Event]:
        free: list[Event] = []
        while self._held and self._shipment is None:
            path = _checkpoint_of(self._held[0])
            if path.startswith(f"{self._disk}/"):
                self._shipment = fetch(path, self._storage)
                self._go_on(None)
            else:
                free.append(self._held.popleft())
        return free

    def _go_on(self, result: Any) -> None:
        assert self._shipment is not None
        try:
            call = self._shipment.send(result)
        except StopIteration as end:
            self._shipment = None
            self._arrived(end.value)
        else:
            self._slot.call("disk", *call)

    def _arrived(self, path: str) -> None:
        if self._start is None:
            self._held[0] = _with_checkpoint(self._held[0], path)
            return
        self._slot.queue(replace(self._start, restore_from=path))
        self._start = None
        for order in self._orders:
            self._slot.queue(order)
        self._orders.clear()


def _checkpoint_of(event: Event) -> str:
    if isinstance(event, AttemptReported):
        return event.saved
    return event.path if isinstance(event, AttemptSaved) else ""


def _with_checkpoint(event: Event, path: str) -> Event:
    if isinstance(event, AttemptReported):
        return replace(event, saved=path)
    return replace(event, path=path) if isinstance(event, AttemptSaved) else event


def _without_checkpoint(event: Event) -> Event | None:
    return None if isinstance(event, AttemptSaved) else _with_checkpoint(event, "")
