"""Thirty real kills of workers, nodes and heads during one sweep on Ray: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.lab.hosts import REPO, wait_until
from tests.lab.ray import RAY_ENV, LocalRay
from tests.tune.distributed.sweep import NUM_STEPS, NUM_TRIALS
from windlass.core import process
from windlass.core.errors import NotFoundError
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.trial import TrialStatus

pytestmark = pytest.mark.soak

KINDS = ("worker",) * 18 + ("head",) * 8 + ("node",) * 4


@pytest.fixture
def lab() -> Iterator[LocalRay]:
    if not is_present("ray"):
        pytest.skip(f"needs ray: {COMPONENTS['ray'].remedy}")
    found = LocalRay(Path(f"/tmp/wlk-{os.getpid()}"))
    try:
        found.add("first", num_cpus=0)
        for name in ("node-0", "node-1"):
            found.add(name, num_cpus=2)
        yield found
    finally:
        found.down()


class Chaos:
    """A sweep, and what kills parts of it."""

    def __init__(self, lab: LocalRay, folder: Path, log: Path, seed: int) -> None:
        self.lab, self.folder, self.log = lab, folder, log
        self.random = Random(seed)
        self.nodes = ["node-0", "node-1"]
        self.num_made = 2
        self.finished: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        argv = [sys.executable, "-m", "tests.tune.distributed.sweep", "ray", str(self.folder), "0.5"]
        env = {**os.environ, **RAY_ENV, "RAY_ADDRESS": self.lab.address, "RAY_LAB_NODE": "127.0.0.2"}
        with self.log.open("ab") as log:
            self.head = subprocess.Popen(argv, env=env, cwd=REPO, stdout=log, stderr=log)

    def look(self) -> History:
        """The journal now; what is finished is remembered with its number of attempts."""
        assert self.head.poll() in (None, 0, -signal.SIGKILL), self.log.read_text()
        try:
            history = read_history(self.folder)
        except NotFoundError:
            return History()
        for trial in history.trials.values():
            if trial.status.is_over:
                assert self.finished.setdefault(trial.id, len(trial.attempts)) == len(trial.attempts)
        return history

    def kill(self, kind: str) -> None:
        if kind == "head":
            self.head.kill()
            self.head.wait()
            self.look()
            self.begin()
        elif kind == "node":
            index = self.random.randrange(2)
            self.lab.kill(self.nodes[index])
            self.nodes[index] = f"node-{self.num_made}"
            self.num_made += 1
            self.lab.add(self.nodes[index], num_cpus=2)
        else:
            self.wait_for_progress()
            running = [t for t in self.look().trials.values() if t.status is TrialStatus.RUNNING and t.attempts[-1].pid]
            if running:
                process.send_signal(self.random.choice(running).attempts[-1].pid, signal.SIGKILL)

    def wait_for_progress(self) -> None:
        """Until a report came, so that kills do not only hit what is about to begin."""
        before = self.look().num_reports
        wait_until(lambda: self.look().num_reports > before, f"a report: {self.log}", timeout_s=120)


def test_thirty_kills(lab: LocalRay, tmp_path: Path) -> None:
    seed = int(os.environ.get("WINDLASS_SEED", time.time_ns() % 1_000_000))
    chaos = Chaos(lab, tmp_path / "far", tmp_path / "head.log", seed)
    chaos.wait_for_progress()
    kinds = list(KINDS)
    chaos.random.shuffle(kinds)
    for kind in kinds:
        chaos.kill(kind)
        time.sleep(chaos.random.uniform(0.0, 1.0))
        assert chaos.head.poll() is None, f"seed {seed}: the sweep ended before all kills: {chaos.log.read_text()}"
    assert chaos.head.wait(timeout=600) == 0, f"seed {seed}: {chaos.log.read_text()}"

    argv = [sys.executable, "-m", "tests.tune.distributed.sweep", "local", str(tmp_path / "local"), "0"]
    assert process.run(argv, cwd=REPO, timeout_s=120).code == 0
    history, local = chaos.look(), read_history(tmp_path / "local")
    assert history.ended_why, f"seed {seed}"
    assert len(history.trials) == NUM_TRIALS
    for trial in history.trials.values():
        assert trial.status is TrialStatus.TERMINATED, f"seed {seed}: {trial}"
        assert [r.metrics["training_iteration"] for r in trial.reports] == list(range(1, NUM_STEPS + 1)), f"seed {seed}"
        expected = [report.metrics["loss"] for report in local.trials[trial.id].reports]
        assert [report.metrics["loss"] for report in trial.reports] == expected, f"seed {seed}"
