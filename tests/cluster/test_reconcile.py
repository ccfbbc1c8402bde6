"""Machines that should not exist, by what the journal and the file say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.test_plan import AWS, config_of
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Choice
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.protocol import CreateRequest
from windlass.cluster.reconcile import Stray, end_strays, find_strays
from windlass.core.clock import FakeClock
from windlass.core.errors import WaitTimeoutError
from windlass.runs.home import Home
from windlass.testing.fake_cloud import CloudFaults, FakeCloud


def nowhere(machine: object) -> NodeHost:
    raise AssertionError("no machine is reached")


class Lab:
    """A cluster whose machines are made by the test."""

    def __init__(self, folder: Path, text: str = AWS) -> None:
        self.clock = FakeClock()
        self.cloud = FakeCloud(self.clock, random.Random(0))
        self.home = ClusterHome.create(Home(folder), config_of(text))
        self.home.write_config(config_of(text))
        self.place = MachinePlace(provider=self.cloud, host=nowhere)

    def want(self, wish: str) -> None:
        with self.home.acting() as journal:
            journal.append("cluster.wanted", state=wish, why="")

    def make(self, group: str, token: str) -> None:
        cluster = self.home.id
        self.cloud.add(CreateRequest(token=token, cluster=cluster, group=group, count=1, choice=Choice(type="small")))
        self.clock.advance(1.0)

    def strays(self) -> dict[str, str]:
        return {each.machine.token: each.why for each in find_strays(self.home, self.place, self.clock)}


def test_a_head_and_its_workers_belong_to_a_cluster_that_is_up(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.want("up")
    for group, token in (("head", "1"), ("workers", "2"), ("workers", "3")):
        lab.make(group, token)
    assert lab.strays() == {}


def test_machines_of_a_cluster_that_is_down_are_strays_and_end(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.want("up")
    lab.make("head", "1")
    lab.want("down")
    assert lab.strays() == {"1": "the cluster is down"}
    end_strays(lab.home, lab.place, find_strays(lab.home, lab.place, lab.clock), lab.clock)
    assert (lab.strays(), lab.cloud.alive()) == ({}, [])


def test_second_heads_unknown_groups_and_workers_without_a_head_are_strays(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.want("up")
    lab.make("workers", "1")
    assert lab.strays() == {"1": "the cluster has no head"}
    lab.make("head", "2")
    lab.make("head", "3")
    lab.make("other", "4")
    head = next(each.id for each in lab.cloud.alive() if each.token == "2")
    assert lab.strays() == {"3": f"the head is {head}", "4": "the file has no group `other`"}


def test_a_machine_that_outlived_its_time_is_a_stray(tmp_path: Path) -> None:
    lab = Lab(tmp_path, AWS + "ttl: 1h")
    lab.want("up")
    lab.make("head", "1")
    lab.clock.advance(3500.0)
    assert lab.strays() == {}
    lab.clock.advance(200.0)
    assert lab.strays() == {"1": "its time to live of 3600 s is over"}


def test_a_machine_is_called_ended_when_the_provider_lists_it_no_more(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.cloud.faults = CloudFaults(end_s=90.0, lost_reply=0.3, dropped=0.3, throttled=0.2)
    lab.want("up")
    lab.make("workers", "1")
    lab.make("workers", "2")
    strays = [Stray(machine=each, why="test") for each in lab.cloud.alive()]
    end_strays(lab.home, lab.place, strays, lab.clock)
    assert lab.cloud.alive() == []


def test_machines_that_do_not_end_are_an_error_that_names_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.cloud.faults = CloudFaults(dropped=1.0)
    lab.make("workers", "1")
    strays = [Stray(machine=each, why="test") for each in lab.cloud.alive()]
    with pytest.raises(WaitTimeoutError, match="still there after 900 s: m0"):
        end_strays(lab.home, lab.place, strays, lab.clock)
