"""Ray's cluster file of 2019 on an EC2 whose instances boot: the script's exit code is the command's, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.cloud import CloudLab

pytestmark = pytest.mark.system

# The form of the announcement of 2019; the user is root, and the image is the default one, since the lab has no others.
FILE = """
cluster_name: tune-default
min_workers: 1
initial_workers: 1
max_workers: 2
autoscaling_mode: default
target_utilization_fraction: 0.8
idle_timeout_minutes: 5
provider: {type: aws, region: us-west-2, availability_zone: "us-west-2a"}
auth: {ssh_user: root}
head_node: {InstanceType: c5.xlarge}
worker_nodes: {InstanceType: c5.xlarge, InstanceMarketOptions: {MarketType: spot}}
setup_commands: [echo set up]
"""

SCRIPT = """
import ray, sys, time
ray.init(log_to_driver=False)
while len([node for node in ray.nodes() if node["Alive"]]) < 2:
    time.sleep(0.2)
print("nodes", len(ray.nodes()))
sys.exit(37)
"""


def test_the_file_of_2019_runs_a_script_and_leaves_nothing(cloud: CloudLab, tmp_path: Path) -> None:
    python = cloud.slot.folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(FILE)
    before = {each.id for each in cloud.front.ledger.all()}  # other tests' instances, of other files too
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["submit", "cluster.yaml", "--start", "--stop", "--yes", "train.py"]
    argv = [sys.executable, "-m", "windlass", "cluster", *words]
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
    try:
        done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900)
    finally:
        python.unlink()
    assert done.returncode == 37, done.stdout + done.stderr
    assert "nodes 2" in done.stdout
    made = [each for each in cloud.front.ledger.all() if each.id not in before]
    assert sorted(each.life for each in made) == ["on-demand", "spot"]
    assert cloud.front.ledger.alive() == []
