"""A task that evaluates checkpoints at a Slurm site: held until the first one, without a client."""

from __future__ import annotations

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from tests.system.test_evaluation import EVALUATE, done
from windlass.record.state import State
from windlass.runs import metrics

pytestmark = pytest.mark.system

TRAIN = """
import sys, time
from pathlib import Path
from windlass import report
for step in (1, 2, 3, 4):
    while step == 2 and not Path(sys.argv[1]).exists():
        time.sleep(0.1)
    with report.checkpoint_dir(step=step) as folder:
        (folder / "state").write_text(str(step))
"""


def test_the_job_is_held_until_there_is_a_checkpoint(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    stage.write("train.py", TRAIN)
    stage.write("evaluate.py", EVALUATE)
    go = stage.code / "go"
    spec = {
        "tasks": {
            "train": {"run": f"{PYTHON} train.py {go}", "cpus": 1},
            "quality": {
                "run": f"{PYTHON} evaluate.py 0",
                "cpus": 1,
                "evaluate": {"of": "train", "every": 2, "last": True, "partition": "short"},
            },
        }
    }
    run = stage.start(spec)
    until(
        lambda: run.facts.task("train").last_checkpoint.step == 1,
        "the first checkpoint",
        story=lambda: stage.story(run),
    )
    job = run.facts.task("quality").jobs[1]
    shown = stage.lab.job(job.backend_id)
    assert (shown["JobState"], shown["Reason"], shown["Partition"]) == ("PENDING", "JobHeldUser", "short")
    assert job.is_held
    go.touch()
    until(lambda: run.state.is_terminal, "the run ends without a client", timeout_s=600, story=lambda: stage.story(run))
    assert run.state is State.SUCCEEDED, stage.story(run)
    assert sorted(done(stage, run)) == [2, 4]
    assert {point.step: point.value for point in metrics.series(run.folder, "eval/score")} == {2: 20.0, 4: 40.0}
    stage.wait_until_queue_is_empty()


def test_training_that_publishes_nothing_ends_the_held_task(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    spec = {"tasks": {"train": {"run": "exit 3"}, "quality": {"run": "true", "evaluate": {"of": "train", "every": 1}}}}
    run = stage.start(spec)
    until(lambda: run.state.is_terminal, "the run ends without a client", timeout_s=600, story=lambda: stage.story(run))
    end = run.facts.task("quality").end
    assert end is not None
    assert (end[0], end[1]) == (State.FAILED, "sibling-failed")
    assert run.facts.task("quality").attempts == {}
    stage.wait_until_queue_is_empty()
