"""Rollout workers as actors of a Ray cluster: a node that is lost costs no step."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.hosts import wait_until
from tests.lab.ray import RAY_ENV, LocalRay
from tests.post.test_grpo import base, grpo, rollouts_of, trainer_of
from tests.post.test_grpo_async import BOUND, check_samples
from windlass.core.errors import PreconditionError
from windlass.post.control.shared import SharedRollouts
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.parallel.ray_processes import RayProcesses

__all__ = ["base"]

pytestmark = pytest.mark.system


WAITING = """
import time
from windlass.train.parallel import ray_processes
ray_processes._END_S = 0.1
others = ray_processes.RayProcesses(2, ["train", "nowhere.yaml"])
time.sleep(600)
"""
"""A first learner that waits for one that ends before they meet."""


class LoseNode(TrainerCallback):
    """Ends all processes of a node after the third step."""

    def __init__(self, ray: LocalRay) -> None:
        self.ray = ray
        self.deaths = 0.0

    def on_step_end(self) -> None:
        if self.trainer.step == 3:
            source = rollouts_of(self.trainer)._source
            assert isinstance(source, SharedRollouts)
            assert source._rollouts is not None
            workers = source._rollouts._workers
            wait_until(
                lambda: sum(each.has_joined for each in list(workers.values())) == 2,
                "both workers generate",
                timeout_s=300.0,
            )
            self.ray.kill("second")
        self.deaths = rollouts_of(self.trainer).metrics.get("rollout/worker_deaths", 0.0)


def test_a_node_that_is_lost_costs_no_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    need("ray")
    for name, value in RAY_ENV.items():
        monkeypatch.setenv(name, value)
    lab = LocalRay(Path(f"/tmp/wlp-{os.getpid()}"))
    try:
        lab.add("first", num_cpus=1)
        lab.add("second", num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", lab.address)
        trainer = trainer_of(grpo(tmp_path, base, *BOUND, "duration=10steps", "async.workers=2", "async.place=ray"))
        lose = LoseNode(lab)
        trainer.add_callback("lose", lose)
        assert trainer.fit().is_finished
        assert lose.deaths >= 1
    finally:
        importlib.import_module("ray").shutdown()
        lab.down()
    check_samples(tmp_path / "run", 10)
    assert not list((tmp_path / "run").glob("windlass-weights-*")), "versions of weights are left"


def test_learners_spread_over_nodes_end_with_each_other(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    """Two learners on two nodes with an engine as an actor; the first one's node has the driver, as in a task."""
    need("ray")
    lab = LocalRay(Path(f"/tmp/wlp-{os.getpid()}"))
    for name, value in RAY_ENV.items():
        monkeypatch.setenv(name, value)
    settings = (*BOUND, "duration=6steps", "checkpoint.every=2steps", "collect_every=1", "async.place=ray")
    words = [sys.executable, "-m", "windlass", "train", "grpo", *grpo(tmp_path, base, *settings).overrides]
    try:
        lab.add("first", num_cpus=2)
        lab.add("second", num_cpus=2)
        environ = {**os.environ, "RAY_ADDRESS": lab.address, "OMP_NUM_THREADS": "1"}
        two = [*words, "--ray-learners", "2"]
        done = subprocess.run(two, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "training on 2 processes" in done.stderr
        monkeypatch.setenv("RAY_ADDRESS", lab.address)
        with pytest.raises(PreconditionError, match="has 2 CPUs; 3 learners need as many") as caught:
            RayProcesses(5, [])
        assert caught.value.code == "ray-no-room"
        ended = subprocess.run(
            [sys.executable, "-c", WAITING], env=environ, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 1
        assert "process 1 of 2 ended: exit code " in ended.stderr
    finally:
        importlib.import_module("ray").shutdown()
        lab.down()
    check_samples(tmp_path / "run", 6)
