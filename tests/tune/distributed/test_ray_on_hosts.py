"""One sweep over Ray on four virtual hosts that share no disk for it: a node dies, one joins, the head is killed."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.lab.hosts import REPO, Hosts, wait_until
from tests.lab.ray import HostsRay
from tests.lab.slots import claim, dismantle
from tests.tune.distributed.sweep import HOLD, NUM_STEPS, NUM_TRIALS
from windlass.core import process
from windlass.core.errors import NotFoundError
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.trial import TrialStatus

pytestmark = pytest.mark.system

HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)
FOLDER = HOME / "windlass-far-sweep"
"""Below the home folder, of which each host has its own copy."""

NAMES = ("h1", "h2", "h3", "h4")


@pytest.fixture
def cluster() -> Iterator[HostsRay]:
    """Four hosts with their own /tmp and home folder; Ray's head on h1, nodes on h2 and h3; h4 is there without Ray."""
    for component in ("ssh", "ray"):
        if not is_present(component):
            pytest.skip(f"needs {component}: {COMPONENTS[component].remedy}")
    slot = claim(f"ray-hosts-of-{os.getpid()}")
    lab = HostsRay(Hosts(slot, NAMES, own=("/tmp", "/dev/shm")))
    try:
        lab.hosts.up()
        lab.begin("h1", num_cpus=1)
        lab.wait("h1")
        for name in ("h2", "h3"):
            lab.begin(name, num_cpus=2)
        yield lab
    finally:
        dismantle(slot)
        lab.reap()


class Sweep:
    """The sweep's head on h1, and what its journal says, seen from outside."""

    def __init__(self, lab: HostsRay, log: Path) -> None:
        self.lab, self.log = lab, log
        self.head: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.lab.hosts.disk("h1") / "upper" / FOLDER.relative_to(HOME)

    def begin(self) -> None:
        argv = [sys.executable, "-m", "tests.tune.distributed.sweep", "ray", str(FOLDER), "0.1"]
        self.head = self.lab.run("h1", argv, self.log, {"PYTHONPATH": str(REPO)})

    def hold(self, *hosts: str) -> None:
        """Let the trials of these hosts wait after their third step: what the test waits for is still so when it acts."""
        for host in hosts:
            self.lab.hosts.run(host, ["touch", str(HOLD)])

    def release(self, *hosts: str) -> None:
        for host in hosts:
            self.lab.hosts.run(host, ["rm", str(HOLD)])

    def kill(self) -> None:
        """SIGKILL for the head, which is below the process at the host's door."""
        assert self.head is not None
        for pid in process.descendants(self.head.pid):
            process.send_signal(pid, signal.SIGKILL)
        self.head.wait(timeout=120)

    def history(self) -> History:
        try:
            return read_history(self.folder)
        except NotFoundError:
            return History()

    def until(self, condition: Callable[[History], object], what: str) -> None:
        def holds() -> bool:
            assert self.head is not None
            assert self.head.poll() is None, self.log.read_text()
            return bool(condition(self.history()))

        try:
            wait_until(holds, what, timeout_s=300)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()}") from error


def test_a_sweep_outlives_a_node_and_its_head(cluster: HostsRay, tmp_path: Path) -> None:
    sweep = Sweep(cluster, tmp_path / "head.log")
    sweep.hold("h2")
    sweep.begin()
    local = _local_sweep(tmp_path / "local")
    sweep.until(lambda h: h.counts[TrialStatus.TERMINATED] >= 8 and _runs_on(h, "h2"), "trials to end, others on h2")
    sweep.hold("h1", "h3", "h4")
    cluster.hosts.kill("h2")
    cluster.begin("h4", num_cpus=2)
    sweep.until(_has_lost, "h2 to be seen dead")
    sweep.release("h1", "h3", "h4")
    sweep.until(lambda h: h.counts[TrialStatus.TERMINATED] >= 20, "trials to end")
    sweep.hold("h1", "h3", "h4")
    sweep.until(_running, "trials that run")
    sweep.kill()
    before = sweep.history()
    running = _running(before)
    sweep.begin()
    sweep.until(lambda h: _runs_on(h, "h4"), "h4 to take part")
    sweep.release("h1", "h3", "h4")
    assert sweep.head is not None
    assert sweep.head.wait(timeout=600) == 0, sweep.log.read_text()

    after = sweep.history()
    assert after.ended_why, sweep.log.read_text()
    assert len(after.trials) == NUM_TRIALS
    assert {trial.status for trial in after.trials.values()} == {TrialStatus.TERMINATED}
    for trial in after.trials.values():
        assert [report.metrics["training_iteration"] for report in trial.reports] == list(range(1, NUM_STEPS + 1))
    for trial in before.trials.values():
        if trial.status.is_over:
            assert len(after.trials[trial.id].attempts) == len(trial.attempts), "a finished trial ran again"
    assert all(len(after.trials[trial].attempts) == num for trial, num in running.items()), "the new head began anew"
    lost = [trial for trial in after.trials.values() if trial.num_interruptions]
    hosts = {trial.attempts[0].host for trial in lost}
    assert "h2" in hosts
    assert hosts <= {"h2", ""}, "only the killed node's trials were lost; of some, nothing had been heard yet"
    assert any(trial.attempts[1].restore for trial in lost), "none went on from a checkpoint that h2 had made"
    assert {attempt.host for trial in after.trials.values() for attempt in trial.attempts} >= {"h2", "h3", "h4"}
    assert _outcome(after) == _outcome(local)
    assert not _actors(cluster)
    assert not cluster.hosts.run("h4", ["find", "/tmp", "-path", "/tmp/windlass-slots-*/*"]).stdout


def _running(history: History) -> dict[str, int]:
    """Trials whose slot is up, with their attempts; one whose slot was not had nothing to lose, and begins anew."""
    found = history.trials.values()
    return {trial.id: len(trial.attempts) for trial in found if trial.status is TrialStatus.RUNNING and trial.host}


def _has_lost(history: History) -> bool:
    return any(trial.num_interruptions for trial in history.trials.values())


def _runs_on(history: History, host: str) -> bool:
    return any(t.host == host and t.status is TrialStatus.RUNNING and t.iteration > 2 for t in history.trials.values())


def _outcome(history: History) -> dict[str, tuple[object, ...]]:
    return {
        trial.id: (trial.config["rate"], trial.config["target"], *(report.metrics["loss"] for report in trial.reports))
        for trial in history.trials.values()
    }


def _local_sweep(folder: Path) -> History:
    argv = [sys.executable, "-m", "tests.tune.distributed.sweep", "local", str(folder), "0"]
    done = process.run(argv, cwd=REPO, timeout_s=600)
    assert done.code == 0, done.stdout + done.stderr
    return read_history(folder)


def _actors(lab: HostsRay) -> list[str]:
    """Names of actors that are left."""
    look = (
        "import ray; ray.init(); print('left', *[a['name'] for a in ray.util.list_named_actors(all_namespaces=True)])"
    )
    log = lab.hosts.disk("h1") / "look.log"
    door = lab.run("h1", [sys.executable, "-c", look], log, {})
    assert door.wait(timeout=300) == 0, log.read_text()
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("left")]
    return line.split()[1:]
