"""Code that was written for Beaker, on this machine."""

from __future__ import annotations

import json

import pytest

from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

_SAY = """
import json, os, pathlib
said = {name: value for name, value in os.environ.items() if name.startswith("BEAKER_") or name == "RESULTS_DIR"}
pathlib.Path(os.environ["WINDLASS_OUT"], f"said-{os.environ['WINDLASS_RANK']}").write_text(json.dumps(said))
"""


def said(stage: Stage, **settings: object) -> list[dict[str, str]]:
    run = stage.launch(stage.python(_SAY, "say.py", nodes=2, cpus=0.5, **settings))
    assert stage.end(run) is State.SUCCEEDED
    return [json.loads((run.folder.path / "out" / "main" / f"said-{rank}").read_text()) for rank in range(2)]


def test_only_who_asks_looks_like_beaker(stage: Stage) -> None:
    assert said(stage) == [{}, {}]


def test_whoever_asks_gets_every_variable(stage: Stage) -> None:
    first, second = said(stage, compat="beaker")
    run = first["BEAKER_EXPERIMENT_ID"]
    assert run == first["BEAKER_WORKLOAD_ID"] == second["BEAKER_WORKLOAD_ID"]
    assert [each["BEAKER_REPLICA_RANK"] for each in (first, second)] == ["0", "1"]
    assert [each["BEAKER_JOB_ID"] for each in (first, second)] == [f"{run}.main.1.0", f"{run}.main.1.1"]
    assert second["BEAKER_LEADER_REPLICA_JOB_ID"] == first["BEAKER_JOB_ID"]
    assert second["BEAKER_LEADER_REPLICA_NODE_ID"] == first["BEAKER_NODE_ID"] == first["BEAKER_NODE_HOSTNAME"] != ""
    assert (first["BEAKER_REPLICA_COUNT"], first["BEAKER_ASSIGNED_CPU_COUNT"]) == ("2", "0.5")
    assert first["BEAKER_LEADER_REPLICA_HOSTNAME"] == "127.0.0.1"
    assert first["RESULTS_DIR"].endswith("/out/main")
    assert not [value for value in {**first, **second}.values() if "${" in value]
    names = {"TASK_ID", "JOB_KIND", "WORKSPACE_ID", "RESULT_DATASET_ID", "ASSIGNED_GPU_COUNT"}
    assert {f"BEAKER_{name}" for name in names} <= first.keys()
