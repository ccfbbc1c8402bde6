"""`windlass mason ... --on SITE` where the site is Beaker: the line of tests.system.test_mason, supervised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.beaker.beaker_stage import SITE, BeakerStage
from tests.system.mason_stage import ACCELERATE_JOB, RAY_JOB, MasonProject, check_accelerate, check_ray
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_the_same_accelerate_line_runs_at_a_beaker_site(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    image = stage.fake.add_image("train", description="of a branch")
    project = MasonProject(stage.code, stage.home)
    line = ACCELERATE_JOB.replace("--cluster ai2/jupiter", "--cluster lab/alpha --min_runtime 30m")
    run = project.launch(line.replace("lab/train", "me/train"), "--on", SITE)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    check_accelerate(project, run, is_beaker=True)
    (task,) = stage.experiment_of(run).spec["tasks"]
    assert (task["image"], task["constraints"]) == ({"beaker": image.id}, {"cluster": ["lab/alpha"]})
    assert task["context"]["minRuntime"] == 1_800_000_000_000


def test_the_same_ray_line_runs_at_a_beaker_site(beaker_stage: BeakerStage, need: Callable[[str], None]) -> None:
    need("ray")
    stage = beaker_stage
    stage.fake.add_image("ray", description="of a branch")
    project = MasonProject(stage.code, stage.home)
    line = RAY_JOB.replace("--cluster ai2/jupiter", "--cluster lab/alpha").replace("lab/train", "me/ray")
    run = project.launch(line, "--on", SITE)
    assert stage.end(run, 90.0) is State.SUCCEEDED, stage.story(run)
    check_ray(project, run, is_beaker=True)
    assert stage.finish(run) == "SUCCEEDED"
