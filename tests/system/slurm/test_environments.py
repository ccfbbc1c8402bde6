"""Environments at a site, end to end: built on the login node, or by a job that the run's own jobs come after."""

from __future__ import annotations

import os

import pytest

from tests.pin.projects import lock, make_project
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from windlass import Options, Run
from windlass.record.state import State

pytestmark = pytest.mark.system

_PROGRAM = "import sys, tiny, demo; print(tiny.VERSION, demo.VALUE, sys.prefix)"


@pytest.fixture(autouse=True)
def _own_uv(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", f"{tmp_path}/uv-cache")
    monkeypatch.setenv("UV_OFFLINE", "1")


def launch(stage: SlurmStage, name: str) -> Run:
    """A run whose environment comes from a lock file."""
    project = stage.code / "project"
    if not project.exists():
        lock(make_project(project))
    spec = stage.task(["python", "-c", _PROGRAM], nodes=2)
    spec["env"] = {"uv": "project"}
    return stage.launch(spec, name=name, options=Options(allow_dirty=True, on=SITE))


@pytest.mark.parametrize("where", ["login", "compute"])
def test_an_environment_is_built_once_and_used_by_all_nodes(slurm_stage: SlurmStage, where: str) -> None:
    stage = slurm_stage
    stage.write_site(**{"env: {": f"env: {{build: {where}, "})
    runs = [launch(stage, f"env{number}") for number in range(2)]
    assert [stage.end(run, 300) for run in runs] == [State.SUCCEEDED] * 2, stage.story(runs[0])
    lines = {stage.log(run, 1, rank).strip() for run in runs for rank in range(2)}
    assert len(lines) == 1, lines
    version, value, prefix = lines.pop().split()
    assert (version, value) == ("2.0", "1")
    assert prefix.startswith(str(stage.home.path / "envs"))
    record = runs[0].folder.provenance()
    assert record["site_environment"]
    stage.wait_until_queue_is_empty()


def test_what_comes_after_a_build_holds_no_node(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    stage.write_site(**{"env: {": "env: {build: compute, "})
    wait = ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300"]
    blocker = stage.lab.command(*wait)
    stage.lab.wait_for_state(blocker, "RUNNING")
    run = launch(stage, "env")
    (build,) = [number for number, job in stage.lab.queued().items() if job.name.startswith("windlass-build-")]
    first = run.facts.task("main").jobs[1].backend_id
    assert f"afterany:{build}" in stage.lab.job(first)["Dependency"]
    stage.lab.command("scancel", blocker)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    stage.wait_until_queue_is_empty()
