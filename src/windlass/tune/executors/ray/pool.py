"""The slots of a head: which one takes a trial, when a new one is made, and when one is given back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from windlass.tune.executors.protocol import Fit, Room, StartAttempt
from windlass.tune.executors.ray.checkpoint_transfer import CheckpointTransfer
from windlass.tune.executors.ray.cluster import (
    SETTLES_S,
    ClusterSnapshot,
    RayCluster,
    answer,
    capacity,
    free_beside,
    may_grow_for,
)
from windlass.tune.executors.ray.placing import Placer
from windlass.tune.executors.ray.shapes import group_bundles, left_after
from windlass.tune.executors.ray.slot import RaySlot, Reply, SlotState
from windlass.tune.executors.ray.slot_actor import SlotFacts, SlotOrder
from windlass.tune.trial import Resources

__all__ = ["RaySlotPool"]

IDLE_S = 60.0
"""A slot without a trial for so long is given back to the cluster."""

MAX_AHEAD = 8
"""Slots that are asked for while no node has room for them, so that Ray's autoscaler sees what is wanted."""


class RaySlotPool:
    """Slots by name. One thread uses it.

    Args:
        num_slots: how many may live at once; 0: as many as the cluster holds.
        deliver: gets every reply of an actor, on a thread of Ray's.
        on_end: told of every slot that ends.
    """

    def __init__(
        self,
        placer: Placer,
        cluster: RayCluster,
        *,
        num_slots: int,
        reuse: str,
        linger_s: float,
        storage: str,
        marker: str,
        deliver: Callable[[Reply], None],
        on_end: Callable[[RaySlot], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots: dict[str, RaySlot] = {}
        self.number = 1
        self._placer, self._cluster, self._clock = placer, cluster, clock
        self._num_slots, self._reuse, self._linger_s = num_slots, reuse, linger_s
        self._storage, self._marker, self._deliver = storage, marker, deliver
        self._on_end = on_end
        self._name = f"ray-{uuid.uuid4().hex[:6]}"
        self._num_made = 0
        self._settling: list[tuple[float, Resources]] = []
        self._vacated: list[Resources] = []
        self._sight: ClusterSnapshot | None = None
        self._free: list[dict[str, float]] = []

    # ---------------------------------------------------------------------------------------------------------- room

    def room(self, resources: Resources) -> Room:
        """Whether a slot of this shape is free, or could be made now."""
        if self._free_slot(resources) is not None or resources in self._vacated:
            return Room(Fit.NOW)
        self._vacated.clear()
        sight = self._cluster.look()
        found = answer(resources, sight, self._free_now(sight))
        if found.fit is Fit.NEVER:
            return found
        if (limit := self._limit(resources)) and len(self.slots) >= limit:
            self._give_back_idle(resources)
            return Room(Fit.LATER, f"all {limit} slots are taken")
        if found.fit is Fit.LATER:
            self._give_back_idle(resources)
            if may_grow_for(resources, sight) and self._num_starting() < MAX_AHEAD:
                self._make(resources)
        return found

    def capacity(self) -> dict[str, float]:
        """What the cluster has now."""
        return capacity(self._cluster.look())

    def assign(self, start: StartAttempt) -> RaySlot:
        """Give an attempt to a free slot of its shape, or to a new one."""
        slot = self._free_slot(start.resources) or self._make(start.resources)
        slot.assign(start)
        return slot

    def _free_slot(self, resources: Resources) -> RaySlot | None:
        """One that is up: those asked for ahead may be long in coming."""
        free = (slot for slot in self.slots.values() if not slot.runs and slot.is_up and slot.resources == resources)
        return next(free, None)

    def _limit(self, resources: Resources) -> int:
        """Trials that ask for nothing would fit without end: as many run as the cluster has CPUs."""
        if self._num_slots or group_bundles(resources):
            return self._num_slots
        return max(1, int(sum(node.total.get("CPU", 0.0) for node in self._cluster.look().nodes)))

    def _free_now(self, sight: ClusterSnapshot) -> list[dict[str, float]]:
        """Counted once per look at the cluster; what is made between two looks is taken off."""
        if sight is not self._sight:
            self._sight, self._free = sight, free_beside(self._reserved(), sight)
        return self._free

    def _reserved(self) -> list[Resources]:
        """What Ray's table of free resources may not show yet."""
        now = self._clock()
        self._settling = [(until, resources) for until, resources in self._settling if until > now]
        starting = [slot.resources for slot in self.slots.values() if slot.state is SlotState.STARTING]
        return starting + [resources for _, resources in self._settling]

    def _num_starting(self) -> int:
        return sum(slot.state is SlotState.STARTING for slot in self.slots.values())

    # --------------------------------------------------------------------------------------------------------- slots

    def _make(self, resources: Resources) -> RaySlot:
        if resources in self._vacated:
            self._vacated.remove(resources)
        self._free = left_after(resources, self._free) or self._free
        name = f"{self._name}-{self._num_made}"
        self._num_made += 1
        order = SlotOrder(
            slot=name, resources=resources, number=self.number, linger_s=self._linger_s, marker=self._marker
        )
        actor, group = self._placer.make(order)
        slot = self._add(name, actor, resources, group)
        slot.call("facts")
        return slot

    def _add(self, name: str, actor: Any, resources: Resources, group: Any) -> RaySlot:
        wait_s = min(20.0, self._linger_s / 4)
        slot = RaySlot(name, actor, resources, number=self.number, wait_s=wait_s, deliver=self._deliver, group=group)
        slot.idle_since = self._clock()
        self.slots[name] = slot
        return slot

    def adopt(self, facts: SlotFacts, actor: Any, *, runs: bool) -> RaySlot:
        """Take over a slot that another head made: with its attempt, or as a free one."""
        slot = self._add(facts.slot, actor, facts.resources, facts.group)
        slot.heard = facts.heard if runs else facts.said
        if runs:
            slot.trial, slot.attempt = facts.trial, facts.attempt
        slot.joined(facts, self._courier(slot, facts))
        return slot

    def joined(self, slot: RaySlot, facts: SlotFacts) -> None:
        """A slot's actor is up."""
        slot.joined(facts, self._courier(slot, facts))
        self._settling.append((self._clock() + SETTLES_S, slot.resources))

    def _courier(self, slot: RaySlot, facts: SlotFacts) -> CheckpointTransfer | None:
        return CheckpointTransfer(slot, facts.disk, self._storage) if facts.disk else None

    def over(self, slot: RaySlot) -> None:
        """A slot's attempt has ended: it is free, or makes place for a fresh process, which Ray starts once it can."""
        slot.release(self._clock())
        has_gpus = any(bundle.get("GPU", 0.0) > 0 for bundle in slot.resources.bundles)
        if self._reuse == "never" or (self._reuse == "auto" and has_gpus):
            self.remove(slot)
            self._vacated.append(slot.resources)

    def remove(self, slot: RaySlot) -> None:
        """End a slot at once."""
        self.slots.pop(slot.name, None)
        slot.state = SlotState.GONE
        self._placer.remove(slot.actor, slot.group)
        self._on_end(slot)

    def give_back_old(self) -> list[RaySlot]:
        """End slots that had no trial for a while; returns them."""
        now = self._clock()
        old = [s for s in self.slots.values() if not s.runs and s.is_up and now - s.idle_since > IDLE_S]
        for slot in old:
            self.remove(slot)
        return old

    def _give_back_idle(self, wanted: Resources) -> None:
        """Slots of other shapes stand in the way of this one."""
        for slot in [s for s in self.slots.values() if not s.runs and s.resources != wanted]:
            self.remove(slot)
