"""A cluster on three hosts that ssh reaches: up, used, unchanged, with a host down, gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hosts import Hosts, wait_until
from windlass.backends.site_shell import SshShell
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import open_place
from windlass.cluster.up import bring_down, bring_up
from windlass.config.loading import load_config
from windlass.core.errors import PreconditionError
from windlass.runs.home import Home
from windlass.supervise.archive import ensure_archive
from windlass.supervise.node.spec import NodeSpec, NodeStatus

pytestmark = pytest.mark.system

FILE = f"""
name: lab
place: {{ssh: {{hosts: [h1, h2, h3]}}}}
python: {sys.executable}
head: {{resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers: {{count: 2, resources: {{CPU: 2, GPU: 0, object_store_memory: 80000000, licence: 1}}}}
setup: [echo set up]
ttl: 30m
"""

COUNT = "import ray, json; ray.init(log_to_driver=False); print(json.dumps(ray.cluster_resources()))"


class Lab:
    """A cluster's file on three hosts."""

    def __init__(self, hosts: Hosts, folder: Path, home: Home) -> None:
        self.hosts = hosts
        self.config = load_config(ClusterConfig, FILE, source="cluster.yaml").value
        self.archive = ensure_archive(folder / "cache")
        self.home = ClusterHome.create(home, self.config)
        self.place = open_place(self.config, cluster=self.home.id, folder=self.home.path, archive=self.archive)
        self.lines: list[str] = []

    def shell(self, name: str) -> SshShell:
        return SshShell(name, config=self.hosts.ssh_config)

    def up(self) -> dict[str, NodeStatus]:
        return bring_up(self.home, self.config, self.place, archive=self.archive, report=self.lines.append)

    def ray_status(self, address: str) -> str:
        """Return what `ray status` prints on the head."""
        env = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.home.token}
        argv = [str(Path(sys.executable).with_name("ray")), "status"]
        return self.hosts.run("h1", argv, env=env, check=False).stdout  # it fails while it knows nothing

    def down(self) -> None:
        bring_down(self.home, self.config, self.place, report=self.lines.append)

    def processes(self) -> list[str]:
        """Return the command lines of Ray and of agents on all hosts."""
        found = []
        for name in self.hosts.names:
            for pid in self.hosts.processes(name):
                words = _command_line(pid)
                if any(word in words for word in ("raylet", "gcs_server", "node-start", "ray-start")):
                    found.append(f"{name}: {words[:80]}")
        return found


def _command_line(pid: int) -> str:
    """Return a process's command line; empty if it ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def lab(hosts: Hosts, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(hosts.ssh_config))
    found = Lab(hosts, tmp_path, Home(home))
    yield found
    found.down()
    for name in hosts.names:
        SshShell(name).close()  # connections are kept for ten minutes


def test_three_hosts_become_one_ray_and_nothing_of_it_stays(lab: Lab) -> None:
    statuses = lab.up()
    assert len(statuses) == 3
    (address,) = {status.head for status in statuses.values()}
    done = lab.hosts.run(
        "h1",
        [sys.executable, "-c", COUNT],
        env={"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": lab.home.token},
    )
    counted = json.loads(done.stdout.strip().splitlines()[-1])
    assert (counted["CPU"], counted["licence"]) == (5.0, 2.0)
    lab.lines.clear()
    assert lab.up() == statuses  # nothing changed
    wait_until(lambda: "5.0 CPU" in lab.ray_status(address), "`ray status` to count all nodes")
    lab.down()
    assert lab.processes() == []
    assert lab.home.state().is_closed


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"setup": ("echo no licence; exit 3",)}, "setup-failed", r"h1: set-up: .* exited with 3: .*no licence"),
        ({"python": "/bin/false"}, "ray-failed", "h1: Ray did not start"),
        ({"python": "no-such-python"}, "setup-failed", "h1: no `no-such-python` on the PATH"),
    ],
)
def test_a_head_that_fails_ends_the_attempt_at_once(lab: Lab, changes: dict[str, Any], code: str, message: str) -> None:
    lab.config = replace(lab.config, **changes)
    with pytest.raises(PreconditionError, match=message) as caught:
        lab.up()
    assert caught.value.code == code
    # The failure is known a moment before its agent has ended.
    wait_until(lambda: not [each for each in lab.processes() if each.startswith("h1")], "the agent to end")
    lab.down()
    assert lab.processes() == []


def test_a_worker_that_fails_is_named_and_the_others_are_ready(lab: Lab) -> None:
    lab.config = replace(lab.config, groups={"workers": replace(lab.config.groups["workers"], setup=("exit 4",))})
    with pytest.raises(PreconditionError, match=r"h[23]: set-up: `exit 4` exited with 4"):
        lab.up()
    assert any("is ready" in line for line in lab.lines), lab.lines


def test_a_host_that_is_down_is_named_and_the_others_are_one_ray(lab: Lab) -> None:
    lab.hosts.kill("h3")
    try:
        with pytest.raises(
            PreconditionError, match=r"no machines for 1 of `workers`; tried: .*h3: cannot reach h3"
        ) as caught:
            lab.up()
        assert caught.value.code == "no-capacity"
        assert sorted(line for line in lab.lines if line.endswith("is ready")) == lab.lines
        assert [line.partition("/")[0] for line in lab.lines] == ["h1", "h2"]
    finally:
        lab.hosts.start("h3")
    lab.lines.clear()
    assert len(lab.up()) == 3  # the host is tried again
    assert [line.partition("/")[0] for line in lab.lines if "h3" in line] == ["h3"]


def test_a_head_that_is_down_is_named(lab: Lab) -> None:
    lab.hosts.kill("h1")
    try:
        with pytest.raises(
            PreconditionError, match=r"no machines for 1 of `head`; tried: .*h1: cannot reach h1"
        ) as caught:
            lab.up()
        assert caught.value.code == "no-capacity"
    finally:
        lab.hosts.start("h1")
    assert len(lab.up()) == 3


def test_other_settings_of_a_cluster_that_is_up_are_refused(lab: Lab) -> None:
    lab.config = replace(lab.config, groups={})
    lab.up()
    lab.config = replace(lab.config, setup=("echo other",))
    with pytest.raises(PreconditionError, match="the cluster lab is up with other settings: setup") as caught:
        lab.up()
    assert caught.value.code == "cluster-changed"


def test_an_agent_that_cannot_start_is_an_error_with_its_host(lab: Lab) -> None:
    host = NodeHost(lab.shell("h2"), "lab-1")
    with pytest.raises(PreconditionError, match="h2: `node-start` failed") as caught:
        host.start(NodeSpec(cluster="lab-1", token="t", number=0), lab.archive, python="/bin/false")
    assert caught.value.code == "node-failed"
