"""Rollout workers as actors of a Ray cluster: a node that is lost costs no step."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.ray import RAY_ENV, LocalRay
from tests.post.test_grpo import base, grpo, rollouts_of, trainer_of
from tests.post.test_grpo_async import BOUND, check_samples
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["base"]

pytestmark = pytest.mark.system


class LoseNode(TrainerCallback):
    """Ends all processes of a node after the third step."""

    def __init__(self, ray: LocalRay) -> None:
        self.ray = ray
        self.deaths = 0.0

    def on_step_end(self) -> None:
        if self.trainer.step == 3:
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
