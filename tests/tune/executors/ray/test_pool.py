"""Which slots are made, reused and given back, on a cluster that is only told of."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.tune.executors.protocol import Fit, StartAttempt
from windlass.tune.executors.ray.cluster import SETTLES_S, ClusterSnapshot, RayNode
from windlass.tune.executors.ray.pool import IDLE_S, MAX_AHEAD, RaySlotPool
from windlass.tune.executors.ray.slot import RaySlot, SlotState
from windlass.tune.executors.ray.slot_actor import SlotFacts, SlotOrder
from windlass.tune.trial import ONE_CPU, Resources

GPU = Resources(bundles=({"GPU": 1.0},))
TWO_CPUS = Resources(bundles=({"CPU": 2.0},))


class FakeActor:
    """Takes every call, answers none."""

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *arguments: Any) -> Any:
        return self

    def future(self) -> Any:
        return self

    def add_done_callback(self, callback: Any) -> None:
        pass


class FakePlacer:
    def __init__(self) -> None:
        self.made: list[SlotOrder] = []
        self.num_removed = 0

    def make(self, order: SlotOrder) -> tuple[Any, Any]:
        self.made.append(order)
        return FakeActor(), None

    def remove(self, actor: Any, group: Any) -> None:
        self.num_removed += 1


class FakeCluster:
    """Each look is a new one, of what `free` says."""

    def __init__(self, **total: float) -> None:
        self.total, self.free = total, dict(total)
        self.permitted: tuple[dict[str, float], ...] = ()

    def look(self) -> ClusterSnapshot:
        node = RayNode(id="n", host="h", total=self.total, free=dict(self.free))
        return ClusterSnapshot(nodes=(node,), permitted=self.permitted)


class World:
    """A pool with all that it meets."""

    def __init__(self, *, num_slots: int = 0, reuse: str = "auto", **total: float) -> None:
        self.clock, self.placer, self.cluster = FakeClock(), FakePlacer(), FakeCluster(**total)
        self.ended: list[str] = []
        self.pool = RaySlotPool(
            self.placer,  # type: ignore[arg-type]
            self.cluster,  # type: ignore[arg-type]
            num_slots=num_slots,
            reuse=reuse,
            linger_s=60.0,
            storage="",
            marker="",
            deliver=lambda reply: None,
            on_end=lambda slot: self.ended.append(slot.name),
            clock=self.clock.monotonic,
        )

    def fit(self, resources: Resources = ONE_CPU) -> Fit:
        return self.pool.room(resources).fit

    def start(self, trial: str, resources: Resources = ONE_CPU) -> RaySlot:
        assert self.fit(resources) is Fit.NOW
        return self.pool.assign(StartAttempt(trial=trial, attempt=1, config={}, resources=resources))

    def join(self, slot: RaySlot) -> None:
        facts = SlotFacts(slot=slot.name, resources=slot.resources, host="h", pid=1, node="n", disk="", number=1)
        self.pool.joined(slot, facts)


def test_slots_come_with_trials_and_no_more_than_fit() -> None:
    world = World(CPU=2.0)
    slots = [world.start("a"), world.start("b")]
    assert world.fit() is Fit.LATER
    assert world.fit(GPU) is Fit.NEVER
    for slot in slots:
        world.join(slot)
    assert world.fit() is Fit.LATER, "Ray's table may not show them yet"
    world.cluster.free = {"CPU": 0.0}
    world.clock.advance(SETTLES_S + 0.1)
    assert world.fit() is Fit.LATER


def test_a_free_slot_takes_the_next_trial_of_its_shape() -> None:
    world = World(CPU=1.0)
    slot = world.start("a")
    world.join(slot)
    world.pool.over(slot)
    assert world.start("b") is slot
    assert len(world.placer.made) == 1


@pytest.mark.parametrize(
    ("reuse", "resources", "num_removed"),
    [("auto", ONE_CPU, 0), ("auto", GPU, 1), ("never", ONE_CPU, 1), ("always", GPU, 0)],
)
def test_reuse(reuse: str, resources: Resources, num_removed: int) -> None:
    world = World(CPU=1.0, GPU=1.0, reuse=reuse)
    slot = world.start("a", resources)
    world.join(slot)
    world.cluster.free = {"CPU": 0.0, "GPU": 0.0}
    world.pool.over(slot)
    assert world.placer.num_removed == num_removed
    assert world.fit(resources) is Fit.NOW, "its place is free, though Ray's table lags"
    assert (world.start("b", resources) is slot) is (num_removed == 0)


def test_a_limit_on_slots_and_slots_of_other_shapes_give_way() -> None:
    world = World(CPU=8.0, num_slots=2)
    slots = [world.start("a"), world.start("b")]
    for slot in slots:
        world.join(slot)
    assert world.pool.room(ONE_CPU).why == "all 2 slots are taken"
    world.pool.over(slots[0])
    assert world.fit(TWO_CPUS) is Fit.LATER
    assert world.ended == [slots[0].name]
    assert world.fit(TWO_CPUS) is Fit.NOW


def test_trials_that_ask_for_nothing_are_as_many_as_cpus() -> None:
    world = World(CPU=3.0)
    nothing = Resources(bundles=({},))
    for trial in "abc":
        world.start(trial, nothing)
    assert world.fit(nothing) is Fit.LATER


def test_slots_are_asked_for_ahead_where_nodes_may_be_added() -> None:
    world = World(CPU=1.0)
    world.cluster.permitted = ({"GPU": 1.0},) * 20
    for _ in range(20):
        assert world.fit(GPU) is Fit.LATER
    assert len(world.placer.made) == MAX_AHEAD
    slot = next(iter(world.pool.slots.values()))
    world.join(slot)
    assert world.fit(GPU) is Fit.NOW
    assert world.start("a", GPU) is slot


def test_a_slot_without_trials_is_given_back() -> None:
    world = World(CPU=2.0)
    idle, busy = world.start("a"), world.start("b")
    for slot in (idle, busy):
        world.join(slot)
    world.pool.over(idle)
    world.clock.advance(IDLE_S + 1)
    assert world.pool.give_back_old() == [idle]
    assert idle.state is SlotState.GONE
    assert list(world.pool.slots.values()) == [busy]
