"""What goes wrong at Beaker, through the product: limits, machines that never get ready, lost replies, a dead service."""

from __future__ import annotations

import time

import pytest

from tests.system.beaker.beaker_stage import SITE, BeakerStage
from tests.system.slurm.command import windlass
from tests.system.stage import PYTHON, until
from windlass.core.errors import AccessError, UnreachableError
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_why_a_job_waits_is_shown(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    stage.fake.scenario.slot_limit("workspace lab/main has used its 8 slots")
    try:
        run = stage.start(stage.python("pass"))
        shown = windlass("show", run.id)
        until(lambda: "its 8 slots" in windlass("show", run.id).out, "the reason is shown", story=lambda: str(shown))
        run.stop()
        assert stage.end(run) is State.STOPPED
        assert stage.finish(run) == "CANCELED"
    finally:
        stage.fake.scenario.slot_limit("")


def test_a_replica_that_never_gets_ready_is_named(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    stage.fake.scenario.never_ready(1)
    try:
        spec = stage.task("true", nodes=2, ready_timeout="2s")
        spec["retry"] = {"interrupted": 0}
        run = stage.start(spec)
        assert stage.end(run) is State.FAILED
    finally:
        stage.fake.scenario.all_ready()
    assert stage.causes(run) == ["never-ready"], stage.story(run)
    assert not stage.starts_of()


def test_a_lost_reply_makes_one_experiment(beaker_stage: BeakerStage) -> None:
    stage, before = beaker_stage, len(beaker_stage.fake.experiments)
    stage.fake.scenario.lose_next_reply("CreateExperiment")
    run = stage.start(stage.python("print('once', flush=True)"))
    assert stage.end(run) is State.SUCCEEDED
    assert len(stage.fake.experiments) == before + 1


def test_an_expired_token_is_named_and_nothing_is_lost(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.task("sleep 2; echo done"))
    stage.fake.scenario.expire_token()
    try:
        with pytest.raises(AccessError) as caught:
            stage.start(stage.python("pass"), name="other")
        assert caught.value.code == "beaker-token"
        run.reconcile()  # sees nothing, so it says nothing of the job
        assert not run.facts.task("main").end or run.state is State.SUCCEEDED
    finally:
        stage.fake.scenario.renew_token()
    assert stage.end(run) is State.SUCCEEDED


def test_a_dead_service_is_named_within_seconds_and_the_job_runs_on(beaker_stage: BeakerStage) -> None:
    stage, go = beaker_stage, beaker_stage.code.parent / "go"
    run = stage.start(stage.task(f"until [ -e {go} ]; do sleep 0.1; done; echo done", nodes=2))
    until(lambda: run.state is State.RUNNING, "it runs", story=lambda: stage.story(run))
    stage.fake.stop()
    try:
        began_at = time.monotonic()
        with pytest.raises(UnreachableError):
            stage.start(stage.python("pass"), name="other")
        took_s = time.monotonic() - began_at
        checked = windlass("site", "check", SITE)
        go.touch()
        until(lambda: run.state.is_terminal, "the job ends by itself", story=lambda: stage.story(run))
    finally:
        stage.fake.start()
    assert took_s < 60
    assert checked.code != 0
    assert "beaker-unreachable" in checked.err, str(checked)
    assert stage.end(run) is State.SUCCEEDED
    other = stage.runs("other")[0]
    assert stage.end(other) is State.SUCCEEDED, stage.story(other)


def test_a_run_that_somebody_cancelled_at_beaker_is_not_made_again(beaker_stage: BeakerStage) -> None:
    stage, before = beaker_stage, len(beaker_stage.fake.experiments)
    run = stage.start(stage.task("sleep 300"))
    until(lambda: run.state is State.RUNNING, "it runs", story=lambda: stage.story(run))
    windlass("beaker", "cancel", stage.experiment_of(run).id)
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert len(stage.fake.experiments) == before + 1


def test_stop_at_once_leaves_no_process(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.task("setsid sleep 300 & trap '' TERM; sleep 300", nodes=2))
    until(lambda: run.state is State.RUNNING, "it runs", story=lambda: stage.story(run))
    run.stop(now=True)
    assert stage.end(run) is State.STOPPED
    assert stage.survivors(run) == {}
    assert stage.finish(run) == "CANCELED"


def test_a_training_over_three_nodes_with_torchrun(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    stage.write(
        "sum.py",
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor([float(dist.get_rank() + 1)])\n"
        "dist.all_reduce(total)\n"
        "print('sum', int(total), 'of', dist.get_world_size(), flush=True)\n"
        "dist.destroy_process_group()\n",  # gloo's threads may abort a process that ends before them
    )
    spec = stage.task([PYTHON, "sum.py"], nodes=3, cluster="torchrun", compat="beaker")
    spec["env"] = {"vars": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}}
    run = stage.start(spec)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert ["sum 6 of 3" in stage.log(run, 1, rank) for rank in range(3)] == [True] * 3
