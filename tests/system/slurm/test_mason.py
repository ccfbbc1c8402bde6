"""`windlass mason ... --on lab`: the command lines of tests.system.test_mason over nodes of a real Slurm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.mason_stage import ACCELERATE_JOB, RAY_JOB, MasonProject, check_accelerate, check_ray
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_the_same_accelerate_line_runs_on_four_nodes(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    project = MasonProject(stage.code, stage.home)
    run = project.launch(ACCELERATE_JOB, "--on", SITE)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    check_accelerate(project, run)


def test_eight_gpus_of_a_node_are_two_nodes_of_four(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    project = MasonProject(stage.code, stage.home)
    line = ACCELERATE_JOB.replace("--num_nodes 4 --gpus 2", "--num_nodes 1 --gpus 8")
    asked = ("--set", "tasks.main.compat=beaker")
    run = project.launch(line.replace("--num_processes 2", "--num_processes 8"), "--on", f"{SITE}/main", *asked)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    said = project.said(run)
    assert [one["beaker"] for one in said["met"]] == [[str(rank // 4), "2"] for rank in range(8)]


def test_the_same_ray_line_runs_on_two_nodes(slurm_stage: SlurmStage, need: Callable[[str], None]) -> None:
    need("ray")
    stage = slurm_stage
    project = MasonProject(stage.code, stage.home)
    run = project.launch(RAY_JOB, "--on", SITE, "--set", "tasks.main.cpus=2")
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    check_ray(project, run)
