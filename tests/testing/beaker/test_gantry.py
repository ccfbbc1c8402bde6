"""Genuine gantry against the fake: its recipes launch, and it follows their logs across a preemption."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from beaker import Beaker

from tests.testing.beaker.conftest import Submit
from windlass.testing.beaker import FakeBeaker, Status

pytestmark = pytest.mark.system


@pytest.fixture
def gantry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gantry's Python API; the question whether the repository is public is answered, for it goes to the network."""
    for name in ("RESULTS_DIR", "GANTRY_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    from gantry import api
    from gantry.git_utils import GitRepoState

    monkeypatch.setattr(GitRepoState, "is_public", True)
    monkeypatch.setattr(GitRepoState, "is_in_tree", lambda _self, path: path == "pyproject.toml")
    return api


def test_a_torchrun_recipe_is_launched(fake: FakeBeaker, client: Beaker, gantry: Any, tmp_path: Path) -> None:
    from gantry.git_utils import GitRepoState

    fake.scenario.slot_limit("wait")  # its entry point would clone from the network
    repo = GitRepoState(repo="lab/code", repo_url="https://github.com/lab/code", ref="a" * 40, _is_remote=True)
    recipe = gantry.Recipe.multi_node_torchrun(
        ["python", "train.py"], gpus_per_node=8, num_nodes=2, name="gantry", workspace="lab/main", git_repo=repo,
        clusters=["lab/al*"], weka=["bucket:/weka"], priority="high", yes=True, save_spec=tmp_path / "spec.yaml",
    )  # fmt: skip
    recipe.dry_run(client=client)
    assert fake.experiments == []
    workload = recipe.launch(show_logs=False, timeout=0, client=client)
    (experiment,) = fake.experiments
    assert experiment.name == workload.experiment.name == "gantry"
    task = experiment.spec["tasks"][0]
    assert (task["replicas"], task["leaderSelection"], task["constraints"]["cluster"]) == (2, True, ["lab/alpha"])
    assert (tmp_path / "spec.yaml").exists()
    again = recipe.launch(show_logs=False, timeout=0, client=client)
    assert again.experiment.name.startswith("gantry-")


def test_gantry_follows_a_job_across_a_preemption(
    fake: FakeBeaker, client: Beaker, gantry: Any, submit: Submit
) -> None:
    script = "[ -e /once/done ] && echo end || { : > /once/done; echo start; sleep 1000; }"
    fake.scenario.preempt(after="start")
    workload = submit("sh", "-c", script, datasets=[{"mountPath": "/once", "source": {"weka": "once"}}])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        job = gantry.follow_workload(client, workload, timeout=300)
    assert job.status.exit_code == 0
    assert "end" in printed.getvalue().splitlines()
    assert [job.status for job in fake.wait("run").jobs] == [Status.CANCELED, Status.SUCCEEDED]
