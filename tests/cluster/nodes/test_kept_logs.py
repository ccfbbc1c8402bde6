"""Logs of a rented node that failed: fetched into the cluster's folder, and found by its id or as the head's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.cluster.test_plan import AWS, config_of
from windlass.backends.site_shell import RawShellResult, SiteShell
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Machine, MachineState
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.nodes.kept_logs import find_kept_logs, keep_logs
from windlass.cluster.places import MachinePlace
from windlass.cluster.starting import NodeStarter
from windlass.cluster.state import machine_data
from windlass.core.clock import FakeClock
from windlass.core.errors import UnreachableError
from windlass.runs.home import Home
from windlass.supervise.node.spec import NodeStatus
from windlass.testing.fake_cloud import FakeCloud


class Shell:
    """Machine whose agent has failed, with two logs."""

    name, is_local = "10.0.0.1", False

    def __init__(self) -> None:
        self.logs = {"setup": b"$ make\nno rule\n", "agent": b""}
        self.is_lost = False

    def run_bytes(self, argv: Sequence[str], **_: object) -> RawShellResult:
        if self.is_lost:
            raise UnreachableError("cannot reach 10.0.0.1: timed out", code="site-unreachable")
        assert argv[:2] == ["tail", "-c"]
        found = self.logs.get(Path(argv[3]).stem)
        return RawShellResult(1, b"", "no such file") if found is None else RawShellResult(0, found, "")


def head(name: str, born_at: float, state: MachineState = "running") -> Machine:
    return Machine(id=name, token="t", group="head", state=state, born_at=born_at)


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterHome:
    return ClusterHome.create(Home(tmp_path), config_of(AWS))


def test_logs_are_kept_and_found_and_go_with_the_next_cluster(cluster: ClusterHome, tmp_path: Path) -> None:
    host = NodeHost(cast(SiteShell, Shell()), cluster.id)
    with cluster.acting() as journal:
        for machine in (head("i-1", 1.0, "ended"), head("i-2", 2.0)):
            journal.append("cluster.node", node=machine_data(machine))
    assert find_kept_logs(cluster, "head") == []
    keep_logs(cluster, host, head("i-1", 1.0))
    assert [(path.name, path.read_bytes()) for path in find_kept_logs(cluster, "head")] == [
        ("agent.log", b""),
        ("setup.log", b"$ make\nno rule\n"),
    ]
    keep_logs(cluster, host, head("i-2", 2.0))
    assert {path.parent.name for path in find_kept_logs(cluster, "head")} == {"i-2"}
    assert {path.parent.name for path in find_kept_logs(cluster, "i-1")} == {"i-1"}
    assert find_kept_logs(cluster, "../i-1") == find_kept_logs(cluster, ".") == []
    with cluster.acting() as journal:
        journal.append("cluster.closed")
        journal.append("cluster.cleared")
    assert find_kept_logs(ClusterHome.create(Home(tmp_path), config_of(AWS)), "i-1") == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_error_of_a_head_that_failed_says_how_long_it_stays(cluster: ClusterHome, is_lost: bool) -> None:
    shell = Shell()
    shell.is_lost = is_lost
    host = NodeHost(cast(SiteShell, shell), cluster.id)
    cloud = FakeCloud(FakeClock(), None)  # type: ignore[arg-type]
    place = MachinePlace(provider=cloud, host=lambda machine: host)
    starter = NodeStarter(cluster, config_of(AWS), place, Path("none"), print)
    status = NodeStatus(token="t", state="failed", message="set-up: `make` exited with 2", code="setup-failed")
    error = starter._failure(host, head("i-1", 1.0), status)
    starter.close()
    lost = " (its logs were not fetched: cannot reach 10.0.0.1: timed out)" if is_lost else ""
    assert error.message == "10.0.0.1: set-up: `make` exited with 2" + lost
    assert error.hint == "windlass cluster logs lab --node i-1; its machine ends itself 15 minutes after the failure"
    assert error.code == "setup-failed"
    assert bool(find_kept_logs(cluster, "i-1")) is not is_lost
