"""Fleet on a cloud with faults: lost replies, restarts of the monitor, refusals, limits; the cloud's ledger is the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from windlass.cluster.machine import Choice, Machine
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    ProviderError,
    RefusedError,
    UncertainError,
)
from windlass.cluster.scaling.fleet import Fleet, FleetLimits
from windlass.core.clock import FakeClock
from windlass.record.frames import Record
from windlass.testing.fake_cloud import CloudFaults, FakeCloud

CHEAP, DEAR = Choice(type="small", price_per_hour=1.0), Choice(type="large", price_per_hour=4.0)


class Killed(BaseException):
    """The monitor was killed."""


class Journal:
    """Journal in memory; the process dies at the append that `kill_at` counts."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.records, self.kill_at = clock, list[Record](), -1

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        record = Record(kind, "head", len(self.records) + 1, self.clock.now(), data)
        self.records.append(record)
        if len(self.records) == self.kill_at:
            raise Killed
        return record


class ScriptedCloud(FakeCloud):
    """Cloud that plays one fault per `create`: `lost`, `dropped`; and refuses types."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.script: list[str] = []
        self.refused: set[str] = set()

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        if request.choice.type in self.refused:
            raise NoCapacityError("none left")
        fault = self.script.pop(0) if self.script else ""
        if fault == "dropped":
            raise UncertainError("no reply")
        machines = super().create(request)
        if fault == "lost":
            raise UncertainError("the reply was lost")
        return machines


class Scene:
    def __init__(self, seed: int = 0, **faults: float) -> None:
        self.clock = FakeClock()
        self.cloud = ScriptedCloud(self.clock, random.Random(seed), CloudFaults(**faults))
        self.journal = Journal(self.clock)
        self.limits = FleetLimits()
        self.choices: list[Choice] = [CHEAP, DEAR]
        self.fleet = self.restart()

    def restart(self) -> Fleet:
        self.fleet = Fleet(
            "c-1",
            self.cloud,
            self.journal,
            list(self.journal.records),
            choices=lambda group: self.choices,
            clock=self.clock,
            limits=self.limits,
        )
        return self.fleet

    def settle(self) -> list[Machine]:
        """Look until nothing is open and lists have caught up."""
        found: list[Machine] = []
        for _ in range(60):
            self.clock.advance(2.0)
            try:
                found = self.fleet.look()
            except ProviderError:
                continue
        return found

    def tried(self) -> list[tuple[str, str, str]]:
        return [(each.choice.type, each.status, each.reason) for each in self.fleet.state.intents.values()]


def test_machines_are_made_once_and_belong_to_rays_request() -> None:
    scene = Scene()
    machines = scene.fleet.create("gpu", 2, "request-1")
    assert [scene.fleet.request_of(each) for each in machines] == ["request-1", "request-1"]
    assert {each.id for each in scene.fleet.look()} == {each.id for each in scene.cloud.alive()}
    assert scene.tried() == [("small", "made", "")]


def test_batches_of_one_request_have_tokens_of_their_own() -> None:
    scene = Scene()
    for _ in range(2):
        scene.fleet.create("gpu", 5, "request-1")
    assert len(scene.cloud.alive()) == 10
    assert sorted(scene.cloud.made.values()) == [5, 5]


def test_a_lost_reply_is_asked_for_and_nothing_is_doubled() -> None:
    scene = Scene()
    scene.cloud.script = ["lost"]
    machines = scene.fleet.create("gpu", 2, "request-1")
    assert {each.id for each in machines} == {each.id for each in scene.cloud.alive()}
    assert len(machines) == 2


def test_a_request_that_never_arrived_is_an_error_only_after_the_window() -> None:
    scene = Scene()
    scene.cloud.script = ["dropped"]
    began_s = scene.clock.monotonic()
    with pytest.raises(RefusedError, match="nothing was made"):
        scene.fleet.create("gpu", 1, "request-1")
    assert scene.clock.monotonic() - began_s >= scene.cloud.window_s
    assert scene.tried() == [("small", "void", "provider-refused")]


def test_a_refused_type_is_followed_by_the_next_one_and_the_table_has_both() -> None:
    scene = Scene()
    scene.cloud.refused = {"small"}
    scene.fleet.create("gpu", 2, "request-1")
    scene.fleet.create("gpu", 1, "request-2")
    assert scene.tried() == [("small", "void", "no-capacity"), ("large", "made", ""), ("large", "made", "")]


def test_a_group_without_machines_says_what_was_tried_and_pauses() -> None:
    scene = Scene(no_capacity=1.0)
    with pytest.raises(NoCapacityError, match=r"tried: small in any zone: no machines of this kind; large"):
        scene.fleet.create("gpu", 1, "request-1")
    calls = scene.cloud.calls["create"]
    with pytest.raises(NoCapacityError, match="the next try is in"):
        scene.fleet.create("gpu", 1, "request-2")
    assert scene.cloud.calls["create"] == calls


def test_the_price_per_hour_is_never_exceeded() -> None:
    scene = Scene()
    scene.limits = FleetLimits(per_hour=3.0)
    fleet = scene.restart()
    fleet.create("gpu", 3, "request-1")
    with pytest.raises(NoCapacityError, match="the limit is 3 USD"):
        fleet.create("gpu", 1, "request-2")
    assert len(scene.cloud.alive()) == 3


def test_the_total_is_what_the_clouds_seconds_cost() -> None:
    scene = Scene()
    scene.limits = FleetLimits(total=2.0)
    fleet = scene.restart()
    fleet.create("gpu", 2, "request-1")
    scene.clock.advance(1800.0)
    assert fleet.cost() == pytest.approx(scene.cloud.seconds() / 3600, rel=0.01)
    assert not fleet.is_over_total
    scene.clock.advance(1810.0)
    assert fleet.is_over_total


def test_a_machine_whose_end_has_no_time_costs_nothing_from_then_on() -> None:
    scene = Scene()
    (machine,) = scene.fleet.create("gpu", 1, "request-1")
    scene.cloud.kill(machine.id)
    ended = scene.cloud.machines[machine.id]
    ended.node = replace(ended.node, ended_at=None)
    scene.settle()
    cost = scene.fleet.cost()
    scene.clock.advance(3600.0)
    assert scene.fleet.cost() == cost


def test_a_machine_that_ends_is_not_listed_and_stays_in_the_table() -> None:
    scene = Scene()
    first, second = scene.fleet.create("gpu", 2, "request-1")
    scene.cloud.kill(first.id)
    assert [each.id for each in scene.settle()] == [second.id]
    assert scene.fleet.state.nodes[first.id].state == "ended"


def test_lists_that_lag_behind_do_not_lose_new_machines() -> None:
    scene = Scene()
    scene.cloud.hidden_s = 8.0
    machines = scene.fleet.create("gpu", 2, "request-1")
    assert {each.id for each in scene.fleet.look()} == {each.id for each in machines}


@pytest.mark.parametrize("seed", range(40))
def test_a_monitor_that_is_killed_anywhere_neither_doubles_nor_loses_machines(seed: int) -> None:
    rng = random.Random(seed)
    scene = Scene(seed, lost_reply=0.2, dropped=0.1, throttled=0.1, no_capacity=0.1, lag_s=8.0, end_s=3.0)
    for number in range(12):
        scene.journal.kill_at = len(scene.journal.records) + rng.randint(1, 12)
        try:
            scene.fleet.create("gpu", rng.randint(1, 3), f"request-{number}")
            machines = scene.fleet.look()
            if machines and rng.random() < 0.4:
                scene.fleet.terminate([rng.choice(machines).id], "test")
        except ProviderError:
            pass
        except Killed:
            scene.restart()
        scene.clock.advance(rng.uniform(0.0, 20.0))
    scene.journal.kill_at = -1
    scene.cloud.faults = replace(scene.cloud.faults, lost_reply=0.0, dropped=0.0, throttled=0.0)
    machines = scene.settle()
    assert {each.id for each in machines} == {each.id for each in scene.cloud.alive()}
    asked = {each.token: each.count for each in scene.fleet.state.intents.values()}
    assert all(scene.cloud.made[token] in (0, count) for token, count in asked.items())
    assert set(scene.cloud.made) <= set(asked)
    assert not scene.fleet.state.open_intents
