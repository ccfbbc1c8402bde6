"""The oldest Ray that clusters are tested with: hosts that ssh reaches, and machines that Ray's autoscaler makes.

All other tests of clusters have the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.components import COMPONENTS, OLD_RAY, is_present
from tests.lab.hosts import Hosts
from tests.system.cluster.scaling_lab import ScalingLab, scaling_lab
from windlass.backends.site_shell import SshShell
from windlass.supervise.launchers.ray_versions import TESTED

pytestmark = [
    pytest.mark.system,
    *(
        pytest.mark.skipif(not is_present(name), reason=f"needs {name}: {COMPONENTS[name].remedy}")
        for name in ("ray-2.40", "ssh")
    ),
]

PYTHON = str(OLD_RAY / "bin" / "python")

FILE = f"""
name: old
place: {{ssh: {{hosts: [h1, h2, h3]}}}}
python: {PYTHON}
head: {{resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers:
    count: 2
    labels: {{kind: worker, zone: a}}
    resources: {{CPU: 2, GPU: 0, object_store_memory: 80000000, licence: 1}}
ttl: 30m
"""

SCRIPT = """
import json, sys, time
import ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=0)
class Gate:
    num_here = 0

    def arrive(self):
        self.num_here += 1

    def is_open(self):
        return self.num_here == 2

@ray.remote(num_cpus=1, resources={"licence": 1})
def where(gate):
    gate.arrive.remote()
    while not ray.get(gate.is_open.remote()):  # both at the same time, so on two nodes
        time.sleep(0.1)
    return ray.util.get_node_ip_address()

gate = Gate.remote()
addresses = ray.get([where.remote(gate), where.remote(gate)])
labels = [[node["Labels"].get("kind"), node["Labels"].get("zone")] for node in ray.nodes()]
print(json.dumps({"version": ray.__version__, "nodes": len(set(addresses)), "labels": labels}))
sys.exit(37)
"""

TASK = """
@ray.remote(num_cpus=2, max_retries=5)
def where():
    return ray.__version__, ray.util.get_node_ip_address()
done(ray.get(where.remote()))
"""


@dataclass
class Terminal:
    """The command line beside three hosts."""

    folder: Path
    environ: dict[str, str]

    def call(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "windlass", "cluster", *words]
        done = subprocess.run(argv, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture
def terminal(hosts: Hosts, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "cluster.yaml").write_text(FILE)
    (tmp_path / "train.py").write_text(SCRIPT)
    variables = {"WINDLASS_HOME": str(tmp_path / "home"), "WINDLASS_SSH_CONFIG": str(hosts.ssh_config)}
    found = Terminal(tmp_path, {**os.environ, **variables})
    yield found
    found.call("down", "cluster.yaml")
    for name in hosts.names:
        SshShell(name, config=hosts.ssh_config).close()  # connections are kept for ten minutes


def test_hosts_are_one_ray_which_runs_scripts(terminal: Terminal, hosts: Hosts) -> None:
    said = terminal.call("up", "cluster.yaml", "--yes").stderr
    assert said.count("is ready; this Ray ignores the cluster's token") == 3, said
    assert "windlass is tested with Ray" not in said
    assert "this Ray ignores the cluster's token" in terminal.call("show", "old").stdout
    line = f"{PYTHON} -c 'import os, ray; print(ray.__version__, os.environ[\"RAY_ADDRESS\"])'"
    assert terminal.call("exec", "old", line).stdout.startswith(f"{TESTED[0][0]}.{TESTED[0][1]}.0 {hosts.ip('h1')}:")
    counted = json.loads(terminal.call("submit", "old", "train.py", code=37).stdout)
    assert (counted["version"], counted["nodes"]) == ("2.40.0", 2)
    assert sorted(counted["labels"], key=str) == [["worker", "a"], ["worker", "a"], [None, None]]
    terminal.call("down", "old")
    assert not [each for name in hosts.names for each in _ray_processes(hosts, name)]


def _ray_processes(hosts: Hosts, name: str) -> list[str]:
    names = [Path(f"/proc/{pid}/comm") for pid in hosts.processes(name)]
    return [
        words for path in names if path.exists() and (words := path.read_text().strip()) in {"raylet", "gcs_server"}
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ScalingLab]:
    with scaling_lab(tmp_path, python=PYTHON) as found:
        yield found


def test_its_autoscaler_makes_machines_for_demand_and_ends_idle_ones(lab: ScalingLab) -> None:
    lab.up()
    result: Any = lab.python(TASK)
    assert result[0] == "2.40.0"
    assert result[1] != lab.head.address
    lab.until(lambda: not lab.workers(), "the idle node to end", timeout_s=300)
    made = [each for each in lab.provider.call("lab.ledger")["machines"] if each["group"] == "workers"]
    assert len(made) == 1
