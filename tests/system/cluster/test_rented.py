"""A rented cluster through the command line, whose client is killed at any moment: one head, and nothing left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windlass.cluster.home import find_cluster
from windlass.cluster.nodes.kept_logs import find_kept_logs
from windlass.cluster.providers.virtual.records import CloudFolder
from windlass.runs.home import Home

pytestmark = pytest.mark.system

FILE = f"""
name: rented
place: {{virtual: {{}}}}
python: {sys.executable}
head: {{types: [small], resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
ttl: 30m
"""


def windlass(folder: Path, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "WINDLASS_HOME": str(folder / "home")}
    argv = [sys.executable, "-m", "windlass", "cluster", *words]
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_killed_client_doubles_and_leaks_no_machine(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "cluster.yaml").write_text(FILE)
    (tmp_path / "job.py").write_text("import ray, sys\nray.init(log_to_driver=False)\nsys.exit(37)\n")
    try:
        for _ in range(5):
            client = windlass(tmp_path, "up", "cluster.yaml", "--yes")
            time.sleep(rng.uniform(0.3, 4.0))
            client.kill()
            client.communicate()
        job = windlass(tmp_path, "submit", "cluster.yaml", "--start", "--yes", "job.py")
        said, _ = job.communicate(timeout=600)
        assert job.returncode == 37, said
        for _ in range(2):
            client = windlass(tmp_path, "down", "rented", "--yes")
            time.sleep(rng.uniform(0.3, 1.0))
            client.kill()
            client.communicate()
    finally:
        last = windlass(tmp_path, "down", "rented", "--yes")
        said, _ = last.communicate(timeout=600)
    assert last.returncode == 0, said
    cluster = find_cluster(Home(tmp_path / "home"), "rented")
    assert cluster.state().is_closed
    records = CloudFolder(cluster.path / "virtual").read()
    assert not records.living
    assert [each.group for each in records.machines.values()] == ["head"]


def test_a_head_whose_set_up_failed_keeps_its_machine_for_the_next_up_and_its_logs_are_here(tmp_path: Path) -> None:
    line = "test -e ~/once || { touch ~/once; echo no luck; exit 3; }"
    (tmp_path / "cluster.yaml").write_text(FILE + f"setup: ['{line}']\n")
    try:
        said, _ = (first := windlass(tmp_path, "up", "cluster.yaml", "--yes")).communicate(timeout=600)
        assert first.returncode == 8, said
        assert "exited with 3" in said
        assert "no luck" in said
        assert "its machine ends itself 15 minutes after the failure" in said
        cluster = find_cluster(Home(tmp_path / "home"), "rented")
        assert "no luck" in find_kept_logs(cluster, "head")[1].read_text()
        said, _ = (again := windlass(tmp_path, "up", "cluster.yaml", "--yes")).communicate(timeout=600)
        assert again.returncode == 0, said
        assert len(CloudFolder(cluster.path / "virtual").read().machines) == 1
    finally:
        last = windlass(tmp_path, "down", "rented", "--yes")
        said, _ = last.communicate(timeout=600)
    assert last.returncode == 0, said
