"""What ends mean together: in a gang with heads the others live exactly as long, and an earlier end of one is a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.supervise.gang.test_core import Scene
from windlass.record import events
from windlass.record.retry import Budgets
from windlass.record.state import End, State
from windlass.supervise.gang.core import SETTLE_S
from windlass.supervise.gang.membership import LOST_AFTER_S
from windlass.supervise.gang.messages import Phase, Release, ReplicaStatus, Step, StopLevel

NO_RETRY = Budgets(interrupted=0, failed=0)


def scene_of(num_replicas: int = 3) -> Scene:
    scene = Scene(num_replicas, num_heads=1, budgets=NO_RETRY)
    scene.run()
    return scene


def verdict(scene: Scene) -> State:
    end = scene.journal.task().end
    assert end is not None
    return end[0]


def test_every_replica_hears_of_all_hosts() -> None:
    assert scene_of().core.order.hosts == "node0=10.0.0.1,node1=10.0.0.2,node2=10.0.0.3"


def test_workers_are_ended_when_the_head_is_done_and_their_ends_do_not_count() -> None:
    scene = scene_of()
    scene.end(0, "ok")
    order = scene.core.order
    assert (order.step, order.level, order.cause) == (Step.STOP, StopLevel.KILL, "ok")
    scene.end(1, "ok", code=-9)
    commands = scene.end(2, "ok", code=-9)
    assert isinstance(commands[0], Release)
    assert (scene.cause(), verdict(scene)) == ("ok", State.SUCCEEDED)


def test_a_worker_that_is_lost_after_the_head_is_done_changes_nothing() -> None:
    scene = scene_of()
    scene.core.on_disconnected(2, scene.now)
    scene.end(0, "ok")
    scene.end(1, "ok", code=-9)
    scene.after(LOST_AFTER_S + 1)
    assert (scene.cause(), verdict(scene)) == ("ok", State.SUCCEEDED)


def test_the_end_of_a_worker_is_a_failure_whatever_its_code() -> None:
    scene = scene_of()
    scene.end(2, "ok", code=0)
    scene.after(SETTLE_S)
    assert (scene.step(), scene.level(), scene.core.order.cause) == (Step.STOP, StopLevel.TERM, "sibling-failed")
    scene.end(0, "sibling-failed")
    assert scene.level() is StopLevel.KILL
    scene.end(1, "sibling-failed", code=-9)
    end = scene.journal.last(events.ATTEMPT_ENDED)["end"]
    assert (end["cause"], end["rank"], end["host"]) == ("killed", 2, "node2")
    assert end["message"] == "replica 2, a worker, exited with code 0 while the head was running"
    assert verdict(scene) is State.FAILED


def test_the_failure_of_a_worker_is_the_cause_and_not_what_it_does_to_the_head() -> None:
    scene = scene_of()
    scene.end(1, "killed", code=1, message="the raylet ended")
    scene.after(0.1)
    scene.end(0, "user-error", code=1)
    scene.after(SETTLE_S)
    scene.end(2, "sibling-failed", code=-9)
    end = scene.journal.last(events.ATTEMPT_ENDED)["end"]
    assert (end["cause"], end["message"]) == ("killed", "the raylet ended")


def test_a_failing_head_takes_its_workers_with_it_at_once() -> None:
    scene = scene_of()
    scene.end(0, "user-error", code=3)
    scene.after(SETTLE_S)
    assert (scene.step(), scene.level()) == (Step.STOP, StopLevel.KILL)
    scene.end(1, "sibling-failed", code=-9)
    scene.end(2, "sibling-failed", code=-9)
    assert (scene.cause(), verdict(scene)) == ("user-error", State.FAILED)


def test_workers_stay_while_the_head_saves() -> None:
    scene = scene_of()
    scene.journal.stop()
    scene.after(1.0)
    assert (scene.step(), scene.level()) == (Step.STOP, StopLevel.TERM)
    scene.after(2.0)
    assert scene.level() is StopLevel.TERM
    scene.end(0, "cancelled", code=75)
    assert scene.level() is StopLevel.KILL


def test_a_new_leader_finds_the_head_done() -> None:
    old = scene_of()
    new = Scene(3, old.journal, epoch=2, num_heads=1, budgets=NO_RETRY)
    new.status(1, Phase.STARTED)
    new.status(2, Phase.STARTED)
    new.end(0, "ok")
    assert (new.step(), new.level()) == (Step.STOP, StopLevel.KILL)
    new.end(1, "ok", code=-9)
    new.end(2, "ok", code=-9)
    assert verdict(new) is State.SUCCEEDED


@pytest.mark.parametrize("is_connection_broken", [False, True])
@pytest.mark.parametrize("has_ended_before", [False, True])
def test_a_node_that_the_scheduler_lost_is_named_and_not_the_one_that_was_told(
    *, is_connection_broken: bool, has_ended_before: bool
) -> None:
    """A node without power breaks no connection. The one that is told may have done its part already."""
    scene = Scene(2)
    scene.run()
    if has_ended_before:
        scene.end(0, "ok")
    if is_connection_broken:
        scene.core.on_disconnected(1, scene.now)
    phase, end = (Phase.ENDED, End("ok", rank=0)) if has_ended_before else (Phase.STARTED, None)
    told = ReplicaStatus(0, 1, phase, "node0", end=end, notice="Slurm lost a node of it", notice_cause="node-lost")
    scene.core.on_status(told, scene.now)
    scene.core.on_status(replace(told, phase=Phase.ENDED, end=end or End("sibling-failed", rank=0)), scene.now)
    scene.after(2 * LOST_AFTER_S + 10)
    found = scene.journal.task().attempts[1].end
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("node-lost", 1, "node1")
