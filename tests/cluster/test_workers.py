"""Waiting for the workers of a rented head whose replies are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_plan import AWS, config_of
from tests.cluster.test_reconcile import Lab
from windlass.cluster import workers
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.nodes.report import HeadReport
from windlass.cluster.places import MachinePlace
from windlass.cluster.workers import await_workers
from windlass.core.errors import UnreachableError
from windlass.supervise.node.spec import NodeStatus
from windlass.testing.fake_cloud import CloudFaults

HEAD = Machine(id="h1", token="1", group="head", state="running")
WORKER = NodeStatus(token="2", state="ready", instance="w1", group="workers")
LOST = UnreachableError("no route to the head", code="site-unreachable")


class Scene(Lab):
    """A head whose first replies are lost."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, num_lost: int) -> None:
        super().__init__(folder)
        self.head, self.num_lost, self.asked, self.lines = HEAD, num_lost, 0, list[str]()
        monkeypatch.setattr(workers, "fetch_report", self.fetch)

    def fetch(self, host: NodeHost, token: str) -> HeadReport:
        self.asked += 1
        if self.asked <= self.num_lost:
            raise LOST
        return HeadReport(statuses={"w1": WORKER}, machines=(), requests=())

    def wait(self) -> dict[str, NodeStatus]:
        place = MachinePlace(provider=self.cloud, host=lambda machine: NodeHost(None, "c"))  # type: ignore[arg-type]
        return await_workers(self.home, config_of(AWS), place, self.head, report=self.lines.append, clock=self.clock)


def test_a_lost_reply_of_the_head_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch, 3)
    assert scene.wait() == {"w1": WORKER}
    assert (scene.asked, scene.lines) == (4, ["w1 is ready"])


def test_a_head_that_stays_unreachable_is_the_error_once_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, 10**9)
    began_s = scene.clock.monotonic()
    scene.cloud.faults = CloudFaults(dropped=0.3, throttled=0.3)
    with pytest.raises(UnreachableError, match="no route to the head"):
        scene.wait()
    assert 900.0 < scene.clock.monotonic() - began_s < 910.0


def test_a_head_that_has_ended_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch, 10**9)
    scene.make("head", "1")
    scene.head = scene.cloud.alive()[0]
    scene.cloud.kill(scene.head.id)
    with pytest.raises(UnreachableError, match="no route to the head"):
        scene.wait()
    assert scene.asked == 1
