from __future__ import annotations

import pytest

from tests.system.stage import Stage, until
from windlass.record.state import State

pytestmark = pytest.mark.system

SHOW = """
import os, time
print('gpus', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)
while not os.path.exists('gate'): time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _two_gpus(_own_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_GPUS", "0,1")


def test_two_runs_never_share_a_gpu(stage: Stage) -> None:
    spec = stage.python(SHOW, gpus=1)
    first, second, third = (stage.launch(spec) for _ in range(3))
    until(lambda: any(run.facts.task("main").reason for run in (first, second, third)), "one of them waits")
    (waiting,) = [run for run in (first, second, third) if run.facts.task("main").reason]
    assert waiting.state is State.QUEUED
    assert waiting.facts.task("main").reason.startswith("waits for 1 GPUs, 0 of 2 free (held by play-")
    stage.write("gate", "")
    running = [run for run in (first, second, third) if run is not waiting]
    assert [stage.end(run) for run in (first, second, third)] == [State.SUCCEEDED] * 3
    assert {stage.log(run) for run in running} == {"gpus 0\n", "gpus 1\n"}
    began = stage.attempts(waiting)[0].started_at
    assert began >= min(stage.attempts(run)[0].ended_at for run in running)


def test_replicas_share_out_what_the_task_got(stage: Stage) -> None:
    stage.write("gate", "")
    run = stage.launch(stage.python(SHOW, gpus=1, nodes=2))
    assert stage.end(run) is State.SUCCEEDED
    assert {stage.log(run), stage.log(run, rank=1)} == {"gpus 0\n", "gpus 1\n"}


def test_a_task_without_gpus_sees_none(stage: Stage) -> None:
    stage.write("gate", "")
    run = stage.launch(stage.python(SHOW))
    assert stage.end(run) is State.SUCCEEDED
    assert stage.log(run) == "gpus \n"


def test_a_waiting_run_can_be_stopped(stage: Stage) -> None:
    first = stage.launch(stage.python("import time; time.sleep(600)", gpus=2))
    stage.wait_for_user(first)
    second = stage.launch(stage.python(SHOW, "second.py", gpus=1))
    until(lambda: second.facts.task("main").reason != "", "the second waits")
    second.stop()
    assert stage.end(second) is State.STOPPED
    assert not any(attempt.has_started for attempt in stage.attempts(second))
    first.stop()
    assert stage.end(first) is State.STOPPED


def test_leases_come_back_when_their_holder_is_killed(stage: Stage) -> None:
    spec = stage.python("import time; time.sleep(600)", gpus=2) | {"retry": {"interrupted": 0}}
    first = stage.launch(spec)
    stage.wait_for_user(first)
    first.stop(now=True)
    stage.write("gate", "")
    second = stage.launch(stage.python(SHOW, "second.py", gpus=2))
    assert stage.end(second) is State.SUCCEEDED
    assert stage.log(second) == "gpus 0,1\n"
