from __future__ import annotations

import pytest

from tests.system.stage import Stage, living, until
from windlass import Run
from windlass.record import events
from windlass.record.state import State

pytestmark = pytest.mark.system


def num_started(stage: Stage, run: Run) -> int:
    return len(stage.records(run, events.PROCESS_STARTED))


def launch_and_wait(stage: Stage, num_replicas: int) -> Run:
    run = stage.launch(stage.task("echo here; exec sleep 6000", nodes=num_replicas, ready_timeout="20min"))
    until(
        lambda: num_started(stage, run) == num_replicas or run.state.is_terminal,
        f"{num_replicas} replicas run",
        timeout_s=600.0,
        story=lambda: stage.story(run),
        poll_s=0.5,
    )
    assert len(living(str(run.folder.path))) >= 2 * num_replicas
    return run


def assert_all_ended(stage: Stage, run: Run) -> None:
    assert stage.end(run) is State.STOPPED
    assert stage.causes(run) == ["cancelled"]
    assert stage.survivors(run, timeout_s=300.0) == {}


def test_more_replicas_than_a_queue_of_connections_holds(stage: Stage) -> None:
    run = stage.launch(stage.task("echo $WINDLASS_RANK", nodes=130, ready_timeout="20min"))
    assert stage.end(run, timeout_s=600.0) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["ok"]
    assert [stage.log(run, rank=rank) for rank in range(130)] == [f"{rank}\n" for rank in range(130)]
    assert stage.survivors(run, timeout_s=300.0) == {}


def test_a_stop_ends_all_of_many_replicas(stage: Stage) -> None:
    run = launch_and_wait(stage, 200)
    run.stop()
    assert_all_ended(stage, run)


def test_a_stop_by_force_ends_all_of_many_replicas(stage: Stage) -> None:
    run = launch_and_wait(stage, 130)
    run.stop(now=True)
    assert_all_ended(stage, run)


def test_a_stop_ends_many_replicas_that_are_being_started(stage: Stage) -> None:
    run = stage.launch(stage.task("sleep 6000", nodes=200, ready_timeout="20min"))
    folder = run.folder.jobs / "main-1"
    until(lambda: len(list(folder.glob("guard-*.json"))) >= 20, "the first replicas are there")
    run.stop()
    assert_all_ended(stage, run)
    assert num_started(stage, run) == 0
