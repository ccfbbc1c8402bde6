"""Experiments on several nodes of a real Slurm."""

from __future__ import annotations

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_a_gang_of_four_nodes_has_four_hosts_four_addresses_and_its_gpus(slurm_stage: SlurmStage) -> None:
    spec = slurm_stage.task(
        'echo "$(hostname) $RANK $WORLD_SIZE $CUDA_VISIBLE_DEVICES $WINDLASS_LINK $(hostname -I)"', nodes=4, gpus=2
    )
    run = slurm_stage.start(spec)
    assert slurm_stage.end(run) is State.SUCCEEDED, slurm_stage.story(run)
    lines = [slurm_stage.log(run, 1, rank).split() for rank in range(4)]
    assert len({line[0] for line in lines}) == 4
    assert [line[1:5] for line in lines] == [[str(rank), "4", "0,1", "1"] for rank in range(4)]
    assert len({line[5] for line in lines}) == 4
    slurm_stage.wait_until_queue_is_empty()


def test_the_cause_is_the_first_failure_and_all_ends(slurm_stage: SlurmStage) -> None:
    run = slurm_stage.start(slurm_stage.task("if [ $RANK = 2 ]; then exit 7; fi; sleep 600", nodes=4))
    assert slurm_stage.end(run) is State.FAILED
    (end,) = slurm_stage.ends(run)
    assert (end.cause, end.code, end.rank) == ("user-error", 7, 2)
    slurm_stage.wait_until_queue_is_empty()
    assert slurm_stage.survivors(run) == {}


def test_a_stop_reaches_a_job_that_runs_and_one_that_waits(slurm_stage: SlurmStage) -> None:
    spec = slurm_stage.task([PYTHON, "trainer.py", "100000", "0.1"], nodes=4, cpus=8)
    first, second = slurm_stage.start(spec, name="first"), slurm_stage.start(spec, name="second")
    slurm_stage.wait_for_line(first, "step 2")
    second.stop()
    assert second.state is State.STOPPED
    assert not slurm_stage.attempts(second)
    first.stop()
    assert slurm_stage.end(first) is State.STOPPED
    slurm_stage.wait_until_queue_is_empty()


def test_a_task_that_waits_for_another_holds_no_node(slurm_stage: SlurmStage) -> None:
    stage, go = slurm_stage, slurm_stage.code.parent / "go"
    spec = {
        "tasks": {
            "prep": {"run": f"until [ -e {go} ]; do sleep 0.1; done; echo 7 > $WINDLASS_OUT/number"},
            "train": {"run": "cat ${tasks.prep.out}/number", "after": "prep", "nodes": 2, "cpus": 1},
        }
    }
    run = stage.start(spec)
    until(lambda: run.facts.task("prep").state is State.RUNNING, "prep runs")
    job = run.facts.task("train").jobs[1]
    shown = stage.lab.job(job.backend_id)
    assert (shown["JobState"], shown["Reason"]) == ("PENDING", "JobHeldUser")
    assert run.facts.task("prep").state is State.RUNNING
    assert job.is_held
    assert not run.facts.task("train").jobs[1].links
    go.touch()
    until(lambda: run.state.is_terminal, "the run ends without a client", timeout_s=300)
    assert run.state is State.SUCCEEDED, stage.story(run)
    assert stage.log(run, 1, 0, "train") == "7\n"
    stage.wait_until_queue_is_empty()


def test_a_task_whose_predecessor_failed_says_so_without_a_client(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    spec = {"tasks": {"prep": {"run": "exit 3"}, "train": {"run": "echo never", "after": "prep"}}}
    run = stage.start(spec)
    until(lambda: run.state.is_terminal, "the run ends without a client", timeout_s=300)
    end = run.facts.task("train").end
    assert end is not None
    assert end[1] == "sibling-failed"
    stage.wait_until_queue_is_empty()
