"""The controller of machines beside a cloud with faults: nothing leaked, nothing doubled, whatever dies."""

from __future__ import annotations

import random
from typing import Any

import pytest

from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import TargetGroup
from windlass.cluster.machine import Choice
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.cluster.state import ClusterState, fold
from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError
from windlass.record.frames import Record
from windlass.testing.fake_cloud import CloudFaults, FakeCloud

CHOICES = (Choice(type="small"), Choice(type="large"))
GROUPS = {
    "head": TargetGroup(least=1, most=1, choices=CHOICES),
    "workers": TargetGroup(least=3, most=5, choices=CHOICES),
}


class Killed(BaseException):
    """The controller's process is killed."""


class MemoryJournal:
    """ClusterJournal that outlives its writer, which it may kill before or after a record."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.records: list[Record] = []
        self.dies_in: int | None = None

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        self.die()
        record = Record(kind, "client", len(self.records) + 1, self.clock.now(), data)
        self.records.append(record)
        self.die()
        return record

    def die(self) -> None:
        """Count down to the death of the process."""
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in <= 0:
                self.dies_in = None
                raise Killed


class MortalCloud(FakeCloud):
    """Cloud whose client may be killed before or after each call."""

    journal: MemoryJournal

    def __init__(self, journal: MemoryJournal, **settings: Any) -> None:
        super().__init__(**settings)
        self.journal = journal

    def _call(self, name: str) -> bool:
        self.journal.die()
        is_lost = super()._call(name)
        if name == "create" and self.journal.dies_in == 1:
            self.journal.dies_in = None
            self.dies_after = True
        return is_lost

    dies_after = False

    def create(self, request: Any) -> Any:
        nodes = super().create(request)
        if self.dies_after:
            self.dies_after = False
            raise Killed
        return nodes


def controller_of(cloud: FakeCloud, journal: MemoryJournal) -> ClusterController:
    state = fold(journal.records, ClusterState())
    return ClusterController("lab", cloud, journal, state, groups=GROUPS, clock=cloud.clock)


def run(controller: ClusterController, cloud: FakeCloud, *, until: Any, limit_s: float = 600.0) -> None:
    """Play rounds until a condition holds."""
    end_s = cloud.clock.monotonic() + limit_s
    while not until():
        assert cloud.clock.monotonic() < end_s, "not done in time"
        if not controller.round():
            cloud.clock.advance(1.0)


def has_all(cloud: FakeCloud) -> bool:
    groups = [node.group for node in cloud.alive() if node.state == "running"]
    return groups.count("head") == 1 and groups.count("workers") == 3


def test_machines_come_and_go() -> None:
    clock = FakeClock()
    cloud, journal = FakeCloud(clock, random.Random(0)), MemoryJournal(clock)
    controller = controller_of(cloud, journal)
    controller.want("up")
    run(controller, cloud, until=lambda: has_all(cloud))
    assert cloud.calls["create"] == 2
    controller.want("down")
    run(controller, cloud, until=lambda: controller.state.is_closed)
    assert cloud.alive() == []
    assert controller.round() == []


def test_a_second_up_makes_nothing() -> None:
    clock = FakeClock()
    cloud, journal = FakeCloud(clock, random.Random(0)), MemoryJournal(clock)
    controller = controller_of(cloud, journal)
    controller.want("up")
    run(controller, cloud, until=lambda: has_all(cloud))
    again = controller_of(cloud, journal)
    again.want("up")
    for _ in range(20):
        again.round()
        clock.advance(1.0)
    assert cloud.calls["create"] == 2


def test_kinds_are_tried_in_order_and_the_list_of_them_ends() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock, random.Random(0), faults=CloudFaults(no_capacity=1.0))
    controller = controller_of(cloud, MemoryJournal(clock))
    controller.want("up")
    with pytest.raises(
        PreconditionError, match="tried: small in any zone: no machines of this kind; large in any zone: no machines"
    ) as caught:
        run(controller, cloud, until=lambda: False)
    assert caught.value.code == "no-capacity"
    assert cloud.alive() == []


def test_a_machine_that_is_taken_back_is_replaced() -> None:
    clock = FakeClock()
    cloud, journal = FakeCloud(clock, random.Random(0)), MemoryJournal(clock)
    controller = controller_of(cloud, journal)
    controller.want("up")
    run(controller, cloud, until=lambda: has_all(cloud))
    cloud.kill(next(node.id for node in cloud.alive() if node.group == "workers"))
    assert not has_all(cloud)
    run(controller, cloud, until=lambda: has_all(cloud))


def test_the_end_waits_for_a_request_whose_reply_was_lost() -> None:
    clock = FakeClock()
    cloud = FakeCloud(clock, random.Random(0))
    controller = controller_of(cloud, MemoryJournal(clock))
    controller.groups = {}
    controller.want("up")
    for _ in range(20):  # lists are empty for longer than they lag behind
        controller.round()
        clock.advance(1.0)
    controller.groups = GROUPS
    cloud.faults = CloudFaults(lost_reply=1.0)
    cloud.hidden_s = 9.0
    controller.round()
    assert cloud.alive()
    cloud.faults = CloudFaults()
    controller.want("down")
    run(controller, cloud, until=lambda: controller.state.is_closed)
    clock.advance(cloud.window_s)
    assert cloud.alive() == []


class RefusingCloud(FakeCloud):
    """Cloud that refuses every request."""

    def create(self, request: CreateRequest) -> Any:
        raise RefusedError("the key is invalid", hint="set another one")


def test_a_refusal_ends_the_attempt_and_is_recorded() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    controller = controller_of(RefusingCloud(clock, random.Random(0)), journal)
    controller.want("up")
    with pytest.raises(RefusedError, match="the key is invalid") as caught:
        controller.round()
    assert caught.value.code == "provider-refused"
    assert [intent.reason for intent in controller.state.intents.values()] == ["the key is invalid"]


def test_errors_of_providers_have_codes() -> None:
    codes = {
        ProviderError("x").code: "provider-failed",
        UncertainError("x").code: "provider-unreachable",
        ThrottledError("x", after_s=1.0).code: "provider-busy",
        NoCapacityError("x").code: "no-capacity",
    }
    assert all(code == expected for code, expected in codes.items())


def scale(cloud: FakeCloud, rng: random.Random, chance: float) -> None:
    """Make a machine, as Ray's autoscaler on the head does while the head is alive."""
    alive = cloud.alive()
    num_workers = sum(node.group == "workers" and node.state == "running" for node in alive)
    if any(node.group == "head" for node in alive) and num_workers < 5 and rng.random() < chance:
        token = f"head-{len(cloud.machines)}"
        cloud.add(CreateRequest(token=token, cluster="lab", group="workers", count=1, choice=CHOICES[0]))


def play(seed: int) -> None:
    """Play one history: up, kills of the controller and of machines, down; then check the ledger."""
    rng = random.Random(seed)
    clock = FakeClock()
    window_s = rng.choice((2.0, 10.0))
    faults = CloudFaults(
        lost_reply=rng.choice((0.0, 0.1, 0.4)),
        dropped=rng.choice((0.0, 0.1, 0.3)),
        throttled=rng.choice((0.0, 0.1)),
        no_capacity=rng.choice((0.0, 0.2)),
        lag_s=rng.uniform(0, window_s * 0.9),
        end_s=rng.choice((0.0, 30.0)),
    )
    journal = MemoryJournal(clock)
    cloud = MortalCloud(journal, clock=clock, rng=rng, faults=faults, window_s=window_s)
    wish = "up"
    controller = controller_of(cloud, journal)
    num_down = rng.choice((rng.randint(1, 8), rng.randint(20, 120)))
    for number in range(4000):
        if number == num_down:
            wish = "down"
        if rng.random() < 0.05 and number < num_down + 60:
            journal.dies_in = rng.randint(1, 6)
        if rng.random() < 0.03 and (alive := cloud.alive()):
            cloud.kill(rng.choice(alive).id)
        try:
            if controller.state.wanted != wish or not journal.records:
                controller.want(wish)
            if not controller.round():
                clock.advance(rng.uniform(0.1, 3.0))
        except Killed:
            controller = controller_of(cloud, journal)
        except PreconditionError:
            clock.advance(5.0)
            controller.want(wish)
        scale(cloud, rng, 0.5 if wish == "down" else 0.02)
        groups = [node.group for node in cloud.alive() if node.state == "running"]
        assert groups.count("head") <= 1, f"seed {seed}: two heads"
        assert groups.count("workers") <= 5, f"seed {seed}: too many workers"
        if controller.state.is_closed:
            break
    assert controller.state.is_closed, f"seed {seed}: not closed"
    clock.advance(window_s)
    assert cloud.alive() == [], f"seed {seed}: leaked"
    booked = controller.state.nodes
    unseen = [machine.node for name, machine in cloud.machines.items() if name not in booked]
    assert all(node.token.startswith("head-") for node in unseen), f"seed {seed}: a machine is not in the journal"
    booked_s = sum((node.ended_at or 0.0) - node.born_at for node in booked.values())
    unseen_s = sum((node.ended_at or 0.0) - node.born_at for node in unseen)
    assert booked_s + unseen_s == pytest.approx(cloud.seconds(), rel=0.01, abs=window_s * len(booked))


@pytest.mark.parametrize("block", range(10))
def test_nothing_is_leaked_or_doubled(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        play(seed)
