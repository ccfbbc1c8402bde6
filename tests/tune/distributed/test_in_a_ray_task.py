"""A sweep inside a task with `cluster: ray`: trials on all nodes of the task, by RAY_ADDRESS alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.system.conftest import _own_world, stage  # noqa: F401  fixtures are found by their names
from tests.system.stage import PYTHON, Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

DRIVER = """
import json, os, time
from windlass import tune

def train(config):
    time.sleep(0.3)
    tune.report({"loss": config["x"] ** 2, "rank": int(os.environ["WINDLASS_RANK"])})

results = tune.Tuner(
    train,
    param_space={"x": tune.uniform(-1, 1)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=10),
    run_config=tune.RunConfig(name="inner", storage_path=os.path.abspath("sweeps"), verbose=0),
).fit()
said = {"ranks": sorted({result.metrics["rank"] for result in results}), "num": len(results), "errors": results.num_errors}
json.dump(said, open("said.json", "w"))
"""


def test_a_sweep_in_a_ray_task_uses_its_nodes(
    stage: Stage,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    need: Callable[[str], None],
) -> None:
    need("ray")
    monkeypatch.setenv("PATH", os.path.dirname(PYTHON), prepend=os.pathsep)
    run = stage.launch(stage.python(DRIVER, nodes=2, cluster="ray"))
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run)
    said = json.loads((stage.code / "said.json").read_text())
    assert said == {"ranks": [0, 1], "num": 10, "errors": 0}
    assert not stage.survivors(run)
