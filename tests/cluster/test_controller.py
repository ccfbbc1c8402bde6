"""The controller of machines beside a cloud with faults: nothing leaked, nothing doubled, whatever dies."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from windlass.cluster import controller as controller_module
from windlass.cluster import decide
from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import TargetGroup
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.cluster.state import ClusterState, Intent, fold
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


class Heads:
    """Heads of a history: each makes machines as Ray's autoscaler does while it is alive, with a journal that ends with it."""

    def __init__(self, cloud: FakeCloud, rng: random.Random) -> None:
        self.cloud, self.rng = cloud, rng
        self.requests: dict[str, dict[str, Intent]] = {}
        self.machines: dict[str, list[Machine]] = {}
        self.sealed: set[str] = set()

    def alive(self) -> str:
        """Return the id of the head that is alive; empty if there is none."""
        return next((node.id for node in self.cloud.alive() if node.group == "head" and node.state == "running"), "")

    def scale(self, chance: float) -> None:
        """Make a machine with some probability; replies that are lost leave the request open for a while, or for ever."""
        head = self.alive()
        num_workers = sum(node.group == "workers" and node.state == "running" for node in self.cloud.alive())
        if not head or head in self.sealed or num_workers >= 5 or self.rng.random() >= chance:
            return
        requests, machines = self.requests.setdefault(head, {}), self.machines.setdefault(head, [])
        token = f"head-{len(self.cloud.machines)}-{len(requests)}"
        intent = Intent(token=token, group="workers", count=1, choice=CHOICES[0], asked_at=0.0)
        if self.rng.random() < 0.2:
            requests[token] = replace(intent, status="void")
            return
        requests[token] = intent
        if self.rng.random() < 0.9:  # else the request never arrived
            made = self.cloud.add(
                CreateRequest(token=token, cluster="lab", group="workers", count=1, choice=CHOICES[0])
            )
            if self.rng.random() < 0.6:  # else the reply was lost
                machines += made
                requests[token] = replace(intent, status="made")

    def seal(self, head: str) -> tuple[list[Intent], list[Machine]]:
        """Return all requests and machines of a head, which makes no more."""
        self.sealed.add(head)
        return list(self.requests.get(head, {}).values()), list(self.machines.get(head, []))


def account(controller: ClusterController, heads: Heads, journal: MemoryJournal, rng: random.Random) -> None:
    """Ask the head as `bring_down` does; it may not respond, and this process may be killed anywhere."""
    ever = [node.id for node in controller.state.nodes.values() if node.group == "head"]
    head = heads.alive()
    if ever != [head] or controller.state.accounted == head:
        return
    controller.seal(head)
    if rng.random() < 0.2:
        heads.seal(head)  # its reply is lost
    elif rng.random() < 0.8:
        found = heads.seal(head)
        journal.die()
        controller.account(head, *found)


def play(seed: int) -> bool:
    """Play one history: up, kills of the controller and of machines, down; then check the ledger.

    Returns:
        Whether the cluster was closed before the provider's window had passed, since nothing could be hidden.
    """
    rng = random.Random(seed)
    clock = FakeClock()
    window_s = rng.choice((2.0, 10.0, 60.0))
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
    wish, heads, can_ask = "up", Heads(cloud, rng), rng.random() < 0.7
    asks, is_exhausted = can_ask, False
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
            if controller.state.wanted != wish or not journal.records or is_exhausted:
                is_exhausted = False
                controller.want(wish)
            if wish == "down" and asks:
                asks = False  # once in each process
                account(controller, heads, journal, rng)
            if not controller.round():
                clock.advance(rng.uniform(0.1, 3.0))
        except Killed:
            controller, asks = controller_of(cloud, journal), can_ask
        except PreconditionError:
            clock.advance(5.0)
            is_exhausted = True
        heads.scale(0.5 if wish == "down" else 0.02)
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
    empty_s = controller._view.empty_s
    return empty_s is not None and controller._view.listed_s < empty_s + window_s


@pytest.mark.parametrize("block", range(10))
def test_nothing_is_leaked_or_doubled(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        play(seed)


def test_a_cluster_of_which_all_is_known_is_closed_early_and_others_are_not() -> None:
    num_early = sum(play(seed) for seed in range(1000, 1100))
    assert 10 < num_early < 90


def _never_waits(state: ClusterState) -> bool:
    return True


def _ignores_what_is_open(requests: Any, machines: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (decide, "_is_accounted", _never_waits),
        (controller_module, "has_all", _ignores_what_is_open),
    ],
)
def test_histories_catch_who_closes_too_early(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(module, name, mutant)

    def play_all() -> None:
        for seed in range(4000):
            play(seed)

    with pytest.raises(AssertionError, match="leaked"):
        play_all()
