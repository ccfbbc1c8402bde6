"""Sweeps on the lab's Slurm: trials as runs, and trials in slots; a node and heads are killed on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.slurm import SlurmLab
from tests.system.slurm.slurm_stage import FAR, SITE, SlurmStage
from tests.system.stage import until
from tests.tune.sweep.conftest import SweepStage
from tests.tune.sweep.test_sweeps_of_runs import wait_until_it_leads
from windlass.backends.site_shell import SshShell
from windlass.core.process import send_signal
from windlass.runs.home import Home
from windlass.tune.sweep.handle import SweepHandle

pytestmark = pytest.mark.system
SLOT = [sys.executable, "-m", "windlass.tune.executors.slots.worker"]


class SlurmHill(SweepStage, SlurmStage):
    """Sweeps on the site `lab`."""

    def kill_head(self, head: subprocess.Popen[bytes]) -> None:
        """SIGKILL, as a laptop that dies."""
        if head.poll() is None:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()


@pytest.fixture
def slurm_hill(tmp_path: Path, home: Path, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmHill]:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    found = SlurmHill(tmp_path, Home(home), slurm)
    yield found
    found.close()


def a_busy_node(handle: SweepHandle) -> str:
    hosts = [trial.host for trial in handle.history.trials.values() if trial.status.value == "RUNNING" and trial.host]
    return hosts[0] if hosts else ""


def check_all_there(handle: SweepHandle, num_trials: int, num_steps: int) -> None:
    trials = handle.history.trials.values()
    assert [(trial.id, trial.why, trial.error) for trial in trials if str(trial.status) != "TERMINATED"] == []
    assert len(trials) == num_trials
    for trial in trials:
        steps = [report.metrics["training_iteration"] for report in trial.reports]
        assert steps == list(range(1, num_steps + 1)), trial.id
        assert trial.last is not None
        assert trial.last["score"] == pytest.approx(trial.config["lr"] * num_steps)


def kill_heads(hill: SlurmHill, handle: SweepHandle, num_kills: int, die: random.Random) -> subprocess.Popen[bytes]:
    """Let one head after another die; returns one that lives."""
    head = hill.head(handle)
    for _ in range(num_kills):
        wait_until_it_leads(handle, head)
        time.sleep(die.uniform(0.0, 1.0))
        hill.kill_head(head)
        head = hill.head(handle)
    return head


def test_runs_and_slots_survive_a_node_and_their_heads(slurm_hill: SlurmHill) -> None:
    """Both at once, for it takes Slurm half a minute to see that a node is gone."""
    hill, die = slurm_hill, random.Random(1)
    runs = SweepHandle(hill.prepare(hill.file({"samples": 5, "concurrency": 3}, pause_s=0.5), on=SITE).create())
    sweep = {"samples": 10, "trainable": "climbing:Climber", "slots": 2, "keep": {"best": 1}}
    task = {"main": {"run": SLOT, "cpus": 1, "vars": {"PAUSE_S": "0.3"}}}
    path = hill.file(sweep, tasks=task, params={}, name="pull")
    slots = SweepHandle(hill.prepare(path, "pulled", on=SITE).create())
    heads = [hill.head(runs), hill.head(slots)]
    until(lambda: all(each.row.counts and a_busy_node(each) for each in (runs, slots)), "both run", timeout_s=300)
    for head in heads:
        hill.kill_head(head)
    hill.lab.kill(a_busy_node(slots))
    heads = [kill_heads(hill, runs, 2, die), kill_heads(hill, slots, 2, die)]
    assert [head.wait(600) for head in heads] == [0, 0], hill.words(runs) + hill.words(slots)
    check_all_there(runs, 5, 9)
    check_all_there(slots, 10, 8)
    made = {run.id for run in hill.runs("climb")}
    assert made <= {
        runs.run_of(trial.id, one.number) for trial in runs.history.trials.values() for one in trial.attempts
    }
    assert len(hill.runs("pull")) == 2, "one job a slot"
    hill.wait_until_queue_is_empty()


def test_the_head_of_a_detached_sweep_is_a_job_of_the_site(slurm_hill: SlurmHill) -> None:
    hill = slurm_hill
    path = hill.file({"samples": 3, "concurrency": 3}, num_steps=6, pause_s=0.4)
    handle = hill.sweep(path, on=SITE, detach=True)
    (head,) = hill.runs("hill-head")
    until(lambda: bool(hill.started()), "a trial runs", timeout_s=300)
    pids = [pid for pid, line in hill.inhabitants(head).items() if " -m windlass.tune.sweep " in line]
    assert len(pids) == 1
    send_signal(pids[0], signal.SIGKILL)
    assert str(hill.end(head, 300)) == "succeeded", hill.story(head)
    check_all_there(handle, 3, 6)
    assert hill.causes(head, "head") == ["killed", "ok"]
    hill.wait_until_queue_is_empty()


@pytest.mark.soak
def test_trials_at_a_site_over_ssh(slurm_hill: SlurmHill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head stays here, runs are there; the journal of each comes over ssh."""
    hill = slurm_hill
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(hill.lab.hosts.ssh_config))
    (tmp_path / "cluster").mkdir()
    hill.write_far_site(tmp_path / "cluster")
    path = hill.file({"samples": 3, "concurrency": 3}, num_steps=6, pause_s=0.3)
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "code"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *argv], cwd=hill.code, check=True)
    handle = SweepHandle(hill.prepare(path, on=SITE).create())
    try:
        assert kill_heads(hill, handle, 2, random.Random(5)).wait(600) == 0, hill.words(handle)
        check_all_there(handle, 3, 6)
    finally:
        SshShell(FAR, config=hill.lab.hosts.ssh_config).close()


@pytest.mark.soak
def test_thirty_heads_are_killed(slurm_hill: SlurmHill) -> None:
    hill = slurm_hill
    path = hill.file({"samples": 40, "concurrency": 4}, num_steps=6, pause_s=0.3)
    handle = SweepHandle(hill.prepare(path, on=SITE).create())
    head = hill.head(handle)
    until(lambda: bool(a_busy_node(handle)) if handle.row.counts else False, "a trial runs", timeout_s=300)
    hill.lab.kill(a_busy_node(handle))
    hill.kill_head(head)
    assert kill_heads(hill, handle, 30, random.Random(3)).wait(600) == 0, hill.words(handle)
    check_all_there(handle, 40, 6)
    hill.wait_until_queue_is_empty()
