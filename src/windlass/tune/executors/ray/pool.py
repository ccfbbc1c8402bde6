"""Slots that a head has on Ray: assignment, creation, release, and takeover from an earlier head."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
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
    group_bundles,
    left_after,
    may_grow_for,
)
from windlass.tune.executors.ray.placing import Placer
from windlass.tune.executors.ray.slot import RaySlot, Reply, SlotState
from windlass.tune.executors.ray.slot_actor import SlotFacts, SlotNotice, SlotOrder
from windlass.tune.trial import Resources

__all__ = ["ATTACH_S", "RaySlotPool", "is_replaced", "take_over"]

IDLE_S = 60.0
"""Time after which an idle slot is released."""

MAX_AHEAD = 8
"""Slots requested while no node has room for them, so that Ray's autoscaler sees the demand."""


class RaySlotPool:
    """Slots by name. Only one thread uses them.

    Args:
        num_slots: maximum number of slots; 0 for as many as the cluster holds.
        deliver: called with every reply of an actor, on a Ray thread.
        on_end: called with every slot that ends.
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
        """Return whether a slot with these resources is free, or could be created now."""
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
        """Return the total resources that the cluster has now."""
        return capacity(self._cluster.look())

    def leaving(self) -> list[tuple[RaySlot, float]]:
        """Return the slots on nodes that Ray drains and that have no notice yet, with the times when these nodes go."""
        nodes = self._cluster.look().leaving
        found = ((slot, slot.facts) for slot in self.slots.values() if slot.notice is None)
        return [(slot, nodes[facts.node]) for slot, facts in found if facts is not None and facts.node in nodes]

    def leave(self, slot: RaySlot, notice: SlotNotice) -> None:
        """Use a slot and its node for no more trials."""
        slot.notice = notice
        if slot.facts is not None:
            self._cluster.leave(slot.facts.node, notice.gone_at)

    def assign(self, start: StartAttempt) -> RaySlot:
        """Assign an attempt to a free slot with its resources, or to a new one."""
        slot = self._free_slot(start.resources) or self._make(start.resources)
        slot.assign(start)
        return slot

    def _free_slot(self, resources: Resources) -> RaySlot | None:
        """Return a free slot that is up, because slots requested in advance may take long."""
        idle = (slot for slot in self.slots.values() if not slot.runs and slot.is_up and slot.notice is None)
        return next((slot for slot in idle if slot.resources == resources), None)

    def _limit(self, resources: Resources) -> int:
        """Return the maximum number of slots, which for trials without resources is the cluster's number of CPUs."""
        if self._num_slots or group_bundles(resources):
            return self._num_slots
        return max(1, int(sum(node.total.get("CPU", 0.0) for node in self._cluster.look().nodes)))

    def _free_now(self, sight: ClusterSnapshot) -> list[dict[str, float]]:
        """Return what is free, computed once per snapshot, minus the slots created since then."""
        if sight is not self._sight:
            self._sight, self._free = sight, free_beside(self._reserved(), sight)
        return self._free

    def _reserved(self) -> list[Resources]:
        """Return reservations that Ray's table of free resources may not show yet."""
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
        """Add a slot that another head created, either with its attempt or as a free slot."""
        slot = self._add(facts.slot, actor, facts.resources, facts.group)
        slot.received = facts.received if runs else facts.num_put
        if runs:
            slot.trial, slot.attempt = facts.trial, facts.attempt
        slot.joined(facts, self._make_transfer(slot, facts))
        return slot

    def joined(self, slot: RaySlot, facts: SlotFacts) -> None:
        """Record that the actor of a slot is up."""
        slot.joined(facts, self._make_transfer(slot, facts))
        self._settling.append((self._clock() + SETTLES_S, slot.resources))

    def _make_transfer(self, slot: RaySlot, facts: SlotFacts) -> CheckpointTransfer | None:
        if not facts.disk:
            return None
        return CheckpointTransfer(slot.queue, partial(slot.call, "disk"), facts.disk, self._storage)

    def over(self, slot: RaySlot) -> None:
        """Release a slot after its attempt, or replace its process, depending on `reuse`."""
        slot.release(self._clock())
        if slot.notice is not None:
            self.remove(slot)
            return
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
        """End slots that have had no trial for a while, and return them."""
        now = self._clock()
        old = [s for s in self.slots.values() if not s.runs and s.is_up and now - s.idle_since > IDLE_S]
        for slot in old:
            self.remove(slot)
        return old

    def _give_back_idle(self, wanted: Resources) -> None:
        """End idle slots that have other resources."""
        for slot in [s for s in self.slots.values() if not s.runs and s.resources != wanted]:
            self.remove(slot)


ATTACH_S = 20.0
"""Time that a new head waits for slots to answer; slots that do not are ended."""


def take_over(ray: Any, placer: Placer, pool: RaySlotPool, running: Mapping[str, int]) -> list[RaySlot]:
    """Take over every usable slot, end the rest, and return the slots taken over.

    Args:
        running: trials that the journal shows as running, with their attempts.
    """
    actors = placer.found()
    known = _ask(ray, {name: actor.facts.remote() for name, actor in actors.items()}, ATTACH_S)
    pool.number = max((facts.number for facts in known.values()), default=0) + 1
    obeying = _ask(ray, {name: actors[name].attach.remote(pool.number) for name in known}, ATTACH_S)
    adopted = []
    for name, actor in actors.items():
        facts = obeying.get(name)
        if facts is not None and (facts.is_over or _is_held(facts, running)):
            adopted.append(pool.adopt(facts, actor, runs=_is_held(facts, running)))
        else:
            placer.remove(actor, known[name].group if name in known else None)
    return adopted


def is_replaced(ray: Any, placer: Placer, pool: RaySlotPool) -> bool:
    """Return whether another head controls any of the slots. Blocks for up to five seconds."""
    mine = {name: actor.facts.remote() for name, actor in placer.found().items() if name in pool.slots}
    return any(facts.number > pool.number for facts in _ask(ray, mine, 5.0).values())


def _is_held(facts: SlotFacts, running: Mapping[str, int]) -> bool:
    return bool(facts.trial) and running.get(facts.trial) == facts.attempt


def _ask(ray: Any, calls: Mapping[str, Any], timeout_s: float) -> dict[str, SlotFacts]:
    """Return the answers by name, without slots that do not answer in time."""
    names = {ref: name for name, ref in calls.items()}
    if not names:
        return {}
    ready, _ = ray.wait(list(names), num_returns=len(names), timeout=timeout_s)
    found: dict[str, SlotFacts] = {}
    for ref in ready:
        try:
            facts = ray.get(ref)
        except ray.exceptions.RayError:  # it is gone, and therefore missing from the result
            continue
        if facts is not None:
            found[names[ref]] = facts
    return found
