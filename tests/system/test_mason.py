"""`windlass mason ... --on local`: command lines written for Beaker run to their end on this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.mason_stage import ACCELERATE_JOB, RAY_JOB, MasonProject, check_accelerate, check_ray
from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system


@pytest.fixture
def project(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> MasonProject:
    monkeypatch.setenv("WINDLASS_GPUS", "0,1,2,3,4,5,6,7")
    return MasonProject(stage.code, stage.home)


def test_four_nodes_of_accelerate_meet_and_find_their_cache(stage: Stage, project: MasonProject) -> None:
    run = project.launch(ACCELERATE_JOB, "--on", "local")
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    check_accelerate(project, run)


def test_a_ray_job_comes_without_its_set_up(stage: Stage, project: MasonProject, need: Callable[[str], None]) -> None:
    need("ray")
    run = project.launch(RAY_JOB, "--on", "local")
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    check_ray(project, run)
