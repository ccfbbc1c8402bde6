"""Many runs of one shape are one job array, and each is a run like any other."""

from __future__ import annotations

import pytest

from tests.system.slurm.slurm_stage import SITE, SlurmStage
from windlass import Options
from windlass.launcher.api import launch_many
from windlass.launcher.prepare import prepare_file
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_eight_runs_are_one_array_and_each_has_its_own_record(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    spec = {**stage.task("echo seed ${params.seed}; [ ${params.seed} != 3 ]", cpus=1), "params": {"seed": 0}}
    path = stage.experiment(spec, "many")
    options = Options(allow_dirty=True, on=SITE)
    runs = launch_many([prepare_file(path, [f"params.seed={n}"], options, home=stage.home) for n in range(8)])
    states = [stage.end(run) for run in runs]
    assert states == [State.FAILED if n == 3 else State.SUCCEEDED for n in range(8)]
    assert [stage.log(run).strip() for run in runs] == [f"seed {n}" for n in range(8)]
    jobs = {run.facts.task("main").jobs[1].backend_id.partition("_")[0] for run in runs}
    assert len(jobs) == 1
    stage.wait_until_queue_is_empty()


def test_one_run_of_an_array_can_be_stopped_alone(slurm_stage: SlurmStage) -> None:
    stage, go = slurm_stage, slurm_stage.code.parent / "go"
    path = stage.experiment(stage.task(f"echo begun; until [ -e {go} ]; do sleep 0.1; done", cpus=1), "few")
    options = Options(allow_dirty=True, on=SITE)
    first, second = launch_many([prepare_file(path, [], options, home=stage.home) for _ in range(2)])
    stage.wait_for_line(first, "begun")
    first.stop()
    assert stage.end(first) is State.STOPPED
    go.touch()
    assert stage.end(second) is State.SUCCEEDED
    stage.wait_until_queue_is_empty()
