"""Regions of a cluster: tried in order, one head whichever of them fail, and what a region lacks is known before."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_controller import Killed, MemoryJournal, MortalCloud
from tests.cluster.test_plan import config_of
from windlass.cluster.config import HEAD
from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import Create, Exhausted, TargetGroup, View, decide
from windlass.cluster.machine import Choice
from windlass.cluster.plan import plan_up
from windlass.cluster.providers.aws.offers import missing_types, shared_problems, skips_of
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.providers.protocol import CreateRequest, NoCapacityError, Skip, UncertainError
from windlass.cluster.state import NO_CAPACITY, ClusterState, Intent, fold
from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, Problem
from windlass.testing.fake_cloud import CloudFaults, FakeCloud

FILE = """
name: lab
place: {aws: {regions: [us-west-2, us-east-1], zones: [us-east-1b, us-east-1a]}}
head: {types: [m5.large, m5.xlarge], market: spot-first}
groups:
  workers: {types: [m5.large, p5e.48xlarge], max: 4}
"""
REGIONS = ("us-west-2", "us-east-1", "eu-west-1")
CHOICES = tuple(
    Choice(type=kind, region=region, is_spot=is_spot)
    for region in REGIONS
    for is_spot in (True, False)
    for kind in ("small", "large")
)
HEADS = {HEAD: TargetGroup(least=1, most=1, choices=CHOICES)}


def test_all_kinds_are_tried_in_one_region_before_the_next(tmp_path: Path) -> None:
    config = config_of(FILE)
    provider = AwsProvider(config, cluster="lab-1", folder=tmp_path)
    found = [(each.region, each.is_spot, each.type, each.zone) for each in provider.choices(config, HEAD)]
    assert found[:4] == [
        ("us-west-2", True, "m5.large", ""),
        ("us-west-2", True, "m5.xlarge", ""),
        ("us-west-2", False, "m5.large", ""),
        ("us-west-2", False, "m5.xlarge", ""),
    ]
    assert found[4:7] == [
        ("us-east-1", True, "m5.large", "us-east-1b"),
        ("us-east-1", True, "m5.large", "us-east-1a"),
        ("us-east-1", True, "m5.xlarge", "us-east-1b"),
    ]
    assert len(found) == 4 + 8


def test_workers_are_tried_in_the_region_of_the_head_alone(tmp_path: Path) -> None:
    config = config_of(FILE).in_region("us-east-1")
    provider = AwsProvider(config, cluster="lab-1", folder=tmp_path)
    assert {each.region for each in provider.choices(config, "workers")} == {"us-east-1"}


def test_prices_are_those_of_each_region(tmp_path: Path) -> None:
    config = config_of(FILE.replace("us-east-1", "eu-west-1"))
    provider = AwsProvider(config, cluster="lab-1", folder=tmp_path)
    prices = {each.region: each.price_per_hour for each in provider.choices(config, HEAD) if each.type == "m5.large"}
    assert prices == {"us-west-2": 0.096, "eu-west-1": 0.107}


def refused(choices: Sequence[Choice]) -> ClusterState:
    """Return the state after all of some kinds were refused."""
    intents = {
        str(number): Intent(
            token=str(number),
            group=HEAD,
            count=1,
            choice=choice,
            asked_at=0.0,
            round=1,
            status="void",
            reason=NO_CAPACITY,
        )
        for number, choice in enumerate(choices)
    }
    return ClusterState(wanted="up", round=1, intents=intents)


def test_decisions_go_down_the_regions_and_stop_while_one_is_unknown() -> None:
    view = View(nodes=())
    for number in range(len(CHOICES)):
        (action,) = decide(refused(CHOICES[:number]), view, HEADS, window_s=5.0, now_s=10.0)
        assert action == Create(group=HEAD, count=1, choice=CHOICES[number])
    (last,) = decide(refused(CHOICES), view, HEADS, window_s=5.0, now_s=10.0)
    assert last == Exhausted(group=HEAD, missing=1)
    state = refused(CHOICES[:4])
    state.intents["3"] = replace(state.intents["3"], status="open", reason="")
    actions = decide(state, replace(view, asked_s={"3": 10.0}), HEADS, window_s=5.0, now_s=10.0)
    assert not any(isinstance(action, Create) for action in actions)


# ----------------------------------------------------------------------------------------------------------- histories


class RegionalCloud(MortalCloud):
    """Cloud with regions: full ones refuse, and those that are cut off reply to nothing; lists need all that were asked."""

    def __init__(self, journal: MemoryJournal, **settings: Any) -> None:
        super().__init__(journal, **settings)
        self.full: set[str] = set()
        self.cut_off: set[str] = set()
        self.asked: set[str] = set()

    def list_machines(self, cluster: str) -> Any:
        self._reach(self.asked)
        return super().list_machines(cluster)

    def find(self, token: str) -> Any:
        self._reach(self.asked)
        return super().find(token)

    def create(self, request: CreateRequest) -> Any:
        self.asked.add(request.choice.region)
        self._reach({request.choice.region})
        if request.choice.region in self.full and not self.made[request.token]:
            raise NoCapacityError(f"none left in {request.choice.region}")
        return super().create(request)

    def _reach(self, regions: set[str]) -> None:
        if regions & self.cut_off:
            raise UncertainError("no reply")


def disturb(cloud: RegionalCloud, journal: MemoryJournal, rng: random.Random) -> None:
    """Kill the client soon, cut a region off or connect it again, or fill or empty one."""
    if rng.random() < 0.06:
        journal.dies_in = rng.randint(1, 6)
    if rng.random() < 0.1:
        cloud.cut_off ^= {rng.choice(REGIONS)}
    if rng.random() < 0.05:
        cloud.full ^= {rng.choice(REGIONS)}


def play(seed: int) -> None:
    """Play one history: regions that fill up, are cut off and come back, a client that is killed; then down."""
    rng, clock = random.Random(seed), FakeClock()
    window_s = rng.choice((2.0, 10.0))
    faults = CloudFaults(
        lost_reply=rng.choice((0.0, 0.3)),
        dropped=rng.choice((0.0, 0.2)),
        no_capacity=rng.choice((0.0, 0.3)),
        lag_s=rng.uniform(0, window_s * 0.9),
    )
    journal = MemoryJournal(clock)
    cloud = RegionalCloud(journal, clock=clock, rng=rng, faults=faults, window_s=window_s)
    cloud.full = {region for region in REGIONS if rng.random() < 0.5}

    def controller_of() -> ClusterController:
        state = fold(journal.records, ClusterState())
        return ClusterController("lab", cloud, journal, state, groups=HEADS, clock=clock)

    controller, wish, num_down = controller_of(), "up", rng.randint(5, 120)
    for number in range(3000):
        if number == num_down:
            wish = "down"
        if number < num_down + 30:
            disturb(cloud, journal, rng)
        else:
            cloud.cut_off, cloud.faults = set(), CloudFaults(lag_s=faults.lag_s)
        try:
            if controller.state.wanted != wish or not journal.records:
                controller.want(wish)
            if not controller.round():
                clock.advance(rng.uniform(0.1, 3.0))
        except Killed:
            controller = controller_of()
        except PreconditionError:
            clock.advance(5.0)
            controller.want(wish)
        heads = [node for node in cloud.alive() if node.state == "running"]
        assert len(heads) <= 1, f"seed {seed}: heads in {[node.choice.region for node in heads]}"
        if controller.state.is_closed:
            break
    assert controller.state.is_closed, f"seed {seed}: not closed"
    clock.advance(window_s)
    assert cloud.alive() == [], f"seed {seed}: leaked"
    asked = {intent.choice.region for intent in controller.state.intents.values()}
    assert cloud.asked <= asked, f"seed {seed}: a region was asked that is not in the journal"


@pytest.mark.parametrize("block", range(5))
def test_there_is_one_head_whichever_regions_fail(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        play(seed)


@pytest.mark.parametrize("full", [(), REGIONS[:1], REGIONS[:2], REGIONS[1:], REGIONS])
def test_the_head_comes_in_the_first_region_that_has_one_and_what_was_tried_is_named(full: Sequence[str]) -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    cloud = RegionalCloud(journal, clock=clock, rng=random.Random(0))
    cloud.full = set(full)
    controller = ClusterController("lab", cloud, journal, ClusterState(), groups=HEADS, clock=clock)
    controller.want("up")
    first = next((region for region in REGIONS if region not in full), "")
    message = ""
    for _ in range(40):
        try:
            controller.round()
        except PreconditionError as caught:
            message = caught.message
            break
        clock.advance(1.0)
    assert [node.choice.region for node in cloud.alive()] == ([first] if first else [])
    before = [
        region for region in REGIONS if region in full and (not first or REGIONS.index(region) < REGIONS.index(first))
    ]
    tried = [intent.choice.region for intent in controller.state.refused]
    assert tried == [region for region in before for _ in range(4)]
    assert bool(message) == (not first)
    for region in before if message else ():
        assert f"small as spot in any zone of {region}: none left in {region}" in message


# -------------------------------------------------------------------------------------------------- what a region lacks

GROUPS = {HEAD: config_of(FILE).head, **config_of(FILE).groups}
TYPES = {HEAD: ["m5.large", "m5.xlarge"], "workers": ["m5.large", "p5e.48xlarge"]}


def test_a_type_that_a_region_lacks_is_not_tried_there() -> None:
    (skip,) = skips_of("us-east-1", GROUPS, TYPES, {"m5.large", "m5.xlarge"})
    assert (skip.type, skip.why) == ("p5e.48xlarge", "us-east-1 has no machine type `p5e.48xlarge`")
    assert skip.fits(Choice(type="p5e.48xlarge", region="us-east-1"))
    assert not skip.fits(Choice(type="m5.large", region="us-east-1"))
    assert not skip.fits(Choice(type="p5e.48xlarge", region="us-west-2"))


def test_a_region_without_machines_for_a_group_is_skipped_as_a_whole() -> None:
    first, *others = skips_of("us-east-1", GROUPS, {**TYPES, "workers": ["p5e.48xlarge"]}, {"m5.large", "m5.xlarge"})
    assert first.why == "us-east-1 has no machine type for `workers` (p5e.48xlarge)"
    assert first.fits(Choice(type="m5.large", region="us-east-1"))
    assert [skip.type for skip in others] == ["p5e.48xlarge"]
    (none,) = skips_of("us-east-1", GROUPS, {**TYPES, "workers": []}, {"m5.large", "m5.xlarge"})
    assert none.why == "us-east-1 has no machine type for `workers`"


def test_a_type_that_no_region_has_is_a_mistake() -> None:
    def problems(lacking: Mapping[str, Sequence[str]]) -> list[str]:
        skips = [
            Skip(region=region, type=kind, why=f"{region}!") for region, kinds in lacking.items() for kind in kinds
        ]
        return [each.message for each in missing_types(list(lacking), skips)]

    assert problems({"a": ["x"], "b": []}) == []
    assert problems({"a": ["x", "m5.lage"], "b": ["m5.lage"]}) == ["none of the regions has the machine type `m5.lage`"]
    assert problems({"a": [""], "b": [""]}) == ["no region can have all groups: a!; b!"]
    assert problems({"a": [""], "b": []}) == []


def test_problems_of_regions_are_said_once_or_with_the_region() -> None:
    both, one, named = (
        Problem("no credentials", "x"),
        Problem("no image ami-1", "x"),
        Problem("us-east-1 has no zone", "x"),
    )
    found = [each.message for each in shared_problems({"us-west-2": [both, one], "us-east-1": [both, named]})]
    assert found == ["no credentials", "us-west-2: no image ami-1", "us-east-1 has no zone"]


class SkippingCloud(FakeCloud):
    """Cloud with two regions, of which one lacks something."""

    def choices(self, config: Any, group: str) -> Sequence[Choice]:
        prices = {("a", "small"): 0.5, ("a", "large"): 2.0, ("b", "small"): 0.7}
        found = [(region, kind) for region in ("a", "b") for kind in ("small", "large")]
        return [Choice(type=kind, region=region, price_per_hour=prices.get((region, kind))) for region, kind in found]

    lacking: Sequence[Skip] = ()

    def skips(self, config: Any) -> Sequence[Skip]:
        return self.lacking


def test_a_plan_leaves_out_what_a_region_lacks_and_knows_the_dearest_region() -> None:
    config = config_of(FILE + "price: {per_hour: 3}")
    cloud = SkippingCloud(FakeClock(), random.Random(0))
    (problem,) = plan_up(config, cloud).problems
    assert "no list price is known for large in b of `head`" in problem.message
    cloud.lacking = [Skip(region="b", type="large", why="b has no large")]
    plan = plan_up(config, cloud)
    assert (plan.problems, plan.skips, plan.rows[0].price_per_hour) == ((), tuple(cloud.lacking), 2.0)
    cloud.lacking = [Skip(region="a", why="a has nothing"), Skip(region="b", type="large", why="b has no large")]
    assert plan_up(config, cloud).rows[0].price_per_hour == 0.7
