"""Sweeps on a cluster of two hosts: launched, left, read and stopped from here; a Tuner in a script that is submitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.lab.hosts import Hosts, wait_until
from tests.system.cluster.test_commands import FILE, Terminal

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_present("ray"), reason=f"needs ray: {COMPONENTS['ray'].remedy}"),
]

TRAIN = """
from windlass import tune

def climb(config):
    import os, socket, time
    for step in range(1, 7):
        time.sleep(config.get("sleep_s", 0.05))
        tune.report({"height": step * config["rate"], "host": socket.gethostname()})
"""
SWEEP = """
name: climb
tasks: {train: {run: "true", cpus: 1}}
sweep:
  metric: height
  mode: max
  samples: 1
  trainable: train:climb
  space: {rate: {grid: [0.1, 0.4, 0.2, 0.3]}}
"""
SCRIPT = """
from windlass import tune

def climb(config):
    import pathlib, socket, time
    there, end_s = pathlib.Path("THERE"), time.monotonic() + 120
    (there / socket.gethostname()).touch()
    while len(list(there.iterdir())) < 2 and time.monotonic() < end_s:  # on both hosts at once
        time.sleep(0.05)
    tune.report({"height": config["rate"], "host": socket.gethostname()})

tuner = tune.Tuner(
    climb,
    param_space={"rate": tune.grid_search([0.1, 0.4, 0.2])},
    tune_config=tune.TuneConfig(metric="height", mode="max", max_concurrent_trials=2),
    run_config=tune.RunConfig(name="submitted", storage_path="/tmp/submitted"),
)
grid = tuner.fit()
print("best", grid.get_best_result().config["rate"])
print("hosts", *sorted({result.metrics["host"] for result in grid}))
"""


class SweepTerminal(Terminal):
    """The same for `windlass sweep`."""

    def sweep(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "windlass", "sweep", *words]
        done = subprocess.run(
            argv, cwd=self.folder / "code", env=self.environ, capture_output=True, text=True, timeout=600
        )
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="module")
def terminal(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepTerminal]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster.yaml").write_text(FILE)
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    (code / "experiment.yaml").write_text(SWEEP)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=code, check=True)
    environ = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "WINDLASS_SSH_CONFIG": str(hosts.ssh_config)}
    found = SweepTerminal(folder, hosts, environ)
    try:
        found.call("up", "cluster.yaml", "--yes")
        yield found
    finally:
        if (folder / "home" / "clusters" / "lab").exists():
            found.call("down", "lab")
    assert found.processes() == []


def test_a_sweep_runs_on_the_cluster_and_is_read_here(terminal: SweepTerminal) -> None:
    done = terminal.sweep("launch", "experiment.yaml", "--on", "lab", "--name", "first")
    assert "first finished: all trials have ended (all samples were suggested)" in done.stderr
    best = json.loads(terminal.sweep("best", "first", "--json").stdout)
    assert best["config"] == {"rate": 0.4}
    shown = json.loads(terminal.sweep("show", "first", "--json").stdout)
    assert shown["state"] == "over"
    (row,) = json.loads(terminal.sweep("ls", "--json").stdout)["sweeps"]
    assert (row["name"], row["state"]) == ("first", "over")
    again = terminal.sweep("launch", "experiment.yaml", "--on", "lab", "--name", "first", code=8)
    assert "[already-exists]" in again.stderr


def test_a_detached_sweep_goes_on_alone_and_is_stopped_from_here(terminal: SweepTerminal) -> None:
    code = terminal.folder / "code"
    (code / "train.py").write_text(TRAIN.replace('"sleep_s", 0.05', '"sleep_s", 60.0'))
    done = terminal.sweep("launch", "experiment.yaml", "--on", "lab", "-d", "--name", "long", "--snapshot")
    assert done.stdout == "long\n"
    wait_until(lambda: '"state": "running"' in _shown(terminal, "long"), "the sweep to run", timeout_s=300)
    wait_until(lambda: '"RUNNING"' in _shown(terminal, "long"), "trials to run", timeout_s=300)
    assert "[in-use]" in terminal.sweep("resume", "long", code=8).stderr
    terminal.sweep("stop", "long")
    wait_until(lambda: '"state": "over"' in _shown(terminal, "long"), "the end", timeout_s=300)


def _shown(terminal: SweepTerminal, name: str) -> str:
    return terminal.sweep("show", name, "--json", code=None).stdout


def test_a_tuner_in_a_script_uses_the_cluster(terminal: SweepTerminal) -> None:
    there = terminal.folder / "there"  # below /tmp, which hosts share
    there.mkdir()
    (terminal.folder / "tune.py").write_text(SCRIPT.replace("THERE", str(there)))
    done = terminal.call("submit", "lab", "tune.py")
    assert "best 0.4" in done.stdout
    assert "hosts h1 h2" in done.stdout


def test_a_name_of_a_site_and_a_cluster_is_refused(terminal: SweepTerminal) -> None:
    sites = Path(terminal.environ["WINDLASS_HOME"]) / "sites"
    sites.mkdir(exist_ok=True)
    (sites / "lab.yaml").write_text("{}\n")
    try:
        done = terminal.sweep("launch", "experiment.yaml", "--on", "lab", code=2)
    finally:
        (sites / "lab.yaml").unlink()
    assert "`--on lab` is both a site and a cluster" in done.stderr
    assert "[ambiguous-name]" in done.stderr


def test_what_a_cluster_cannot_do_is_refused(terminal: SweepTerminal) -> None:
    done = terminal.sweep("launch", "experiment.yaml", "--on", "lab", "~sweep.trainable", code=3)
    assert "[sweep-unsupported]" in done.stderr
    done = terminal.sweep("launch", "experiment.yaml", "--on", "lab", "limit.time=1h", code=3)
    assert "trials on a cluster do not support `limit`" in done.stderr
