"""Plans of clusters: counts, list prices, limits, and what a cluster that is up takes over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from windlass.cluster.config import ClusterConfig
from windlass.cluster.machine import Choice
from windlass.cluster.plan import changed_settings, plan_up
from windlass.config.loading import load_config
from windlass.core.clock import FakeClock
from windlass.testing.fake_cloud import FakeCloud

AWS = """
name: lab
place: {aws: {region: us-west-2}}
head: {types: [small]}
groups:
  workers: {types: [small, large], min: 1, max: 4}
"""
SSH = """
name: lab
place: {ssh: {hosts: [a, b, c]}}
groups: {workers: {count: 1}}
"""
PRICES = {"small": 0.5, "large": 2.0}


@dataclass(slots=True)
class PricedCloud(FakeCloud):
    """Cloud with list prices."""

    prices: dict[str, float] = field(default_factory=lambda: dict(PRICES))

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        types = config.head.types if group == "head" else config.groups[group].types
        return [Choice(type=each, price_per_hour=self.prices.get(each)) for each in types]


def config_of(text: str) -> ClusterConfig:
    return load_config(ClusterConfig, text, source="cluster.yaml").value


def cloud(**settings: Any) -> PricedCloud:
    return PricedCloud(FakeClock(), random.Random(0), **settings)


def test_a_plan_counts_machines_and_their_highest_prices() -> None:
    plan = plan_up(config_of(AWS), cloud())
    assert [(row.group, row.least, row.most) for row in plan.rows] == [("head", 1, 1), ("workers", 1, 4)]
    assert (plan.per_hour, plan.most_per_hour) == (2.5, 8.5)
    assert plan.problems == ()


def test_a_limit_below_the_machines_of_the_start_is_a_problem() -> None:
    (problem,) = plan_up(config_of(AWS + "price: {per_hour: 2}"), cloud()).problems
    assert problem.code == "price-limit"
    assert problem.message == "the machines of the start cost up to $2.50 an hour, `price.per_hour` is $2.00"


def test_files_that_are_missing_here_are_problems(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    config = replace(config_of(AWS), files={"/data": str(tmp_path / "there"), "/code": str(tmp_path / "none")})
    (problem,) = plan_up(config, cloud()).problems
    assert (problem.code, problem.message) == ("file-not-found", f"no such file or folder: {tmp_path}/none")


def test_a_limit_needs_prices() -> None:
    prices = {"small": 0.5}
    (problem,) = plan_up(config_of(AWS + "price: {total: 20}"), cloud(prices=prices)).problems
    assert problem.code == "price-unknown"
    assert problem.message == "`price.total` cannot be kept: no list price is known for large of `workers`"
    assert plan_up(config_of(AWS), cloud(prices=prices)).per_hour is None


@pytest.mark.parametrize(
    ("text", "change", "expected"),
    [
        (AWS, ("max: 4", "max: 5"), ["groups"]),
        (AWS, ("us-west-2", "us-east-1"), ["place"]),
        (AWS, ("name: lab", "name: lab\nttl: 1h"), ["ttl"]),
        (SSH, ("[a, b, c]", "[a, b, c, d]"), []),
        (SSH, ("count: 1", "count: 2"), []),
        (SSH, ("count: 1}", "count: 1}, more: {count: 1}"), []),
        (SSH, ("[a, b, c]", "[b, a, c]"), ["place.ssh.hosts"]),
        (SSH, ("[a, b, c]", "[a, b]"), ["place.ssh.hosts"]),
        (SSH, ("hosts:", "user: eve, hosts:"), ["place.ssh"]),
        (SSH, ("count: 1", "count: 0"), ["groups.workers"]),
        (SSH, ("count: 1", "count: 1, setup: [make]"), ["groups.workers"]),
        (SSH, ("name: lab", "name: lab\nsetup: [make]"), ["setup"]),
    ],
)
def test_what_a_cluster_that_is_up_cannot_take_over(text: str, change: tuple[str, str], expected: list[str]) -> None:
    assert change[0] in text
    assert changed_settings(config_of(text), config_of(text.replace(*change))) == expected
    assert changed_settings(config_of(text), config_of(text)) == []
