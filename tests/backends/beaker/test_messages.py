"""Causes of ends, and reasons for waiting, in words."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backends.beaker.explain import reasons_of, slots_in_use
from windlass.backends.beaker.observe import cause_of_job, words_of_end
from windlass.backends.beaker.values import BeakerEvent, BeakerJob, BeakerWorkspace
from windlass.record.causes import Cause


def seen_job(rank: int = 0, size: int = 1, **facts: Any) -> BeakerJob:
    told = {"id": f"job-{rank}", "task": "main", "task_id": f"task-{rank}", "attempt": 1, "status": "queued", **facts}
    return BeakerJob(rank=rank, size=size, **told)


CODES = {
    "system_preemption": Cause.PREEMPTED,
    "user_preemption": Cause.PREEMPTED,
    "idle": Cause.STALLED,
    "manual": Cause.CANCELLED,
    "timeout": Cause.WALLTIME,
    "node_unavailable": Cause.NODE_LOST,
    "impossible_to_schedule": Cause.UNSCHEDULABLE,
    "sibling_task_failed": Cause.SIBLING_FAILED,
    "sibling_task_preemption": Cause.PREEMPTED,
    "healthcheck_failed": Cause.NODE_UNHEALTHY,
    "sibling_task_retry": Cause.NODE_LOST,
    "node_unhealthy": Cause.NODE_UNHEALTHY,
}


@pytest.mark.parametrize(("code", "cause"), CODES.items())
def test_every_code_has_a_cause(code: str, cause: Cause) -> None:
    assert cause_of_job(seen_job(canceled_code=code, started_ns=1)) is cause


def test_no_code_of_the_client_is_forgotten() -> None:
    from beaker import beaker_pb2  # lazy: grpc costs half a second

    from windlass.backends.beaker.decoding import cancelation_name

    numbers = [number for number in beaker_pb2.CancelationCode.values() if number]
    assert {cancelation_name(number) for number in numbers} == set(CODES)
    assert cancelation_name(99) == "code 99"
    assert cause_of_job(seen_job(canceled_code="code 99")) is Cause.UNKNOWN


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"exit_code": 0, "status": "succeeded"}, Cause.OK),
        ({"exit_code": 76, "status": "failed", "started_ns": 1}, Cause.SETUP_FAILED),
        ({"exit_code": 1, "status": "failed", "started_ns": 1}, Cause.UNKNOWN),
        ({"status": "failed"}, Cause.START_FAILED),
        ({"canceled_code": "timeout", "scheduled_ns": 1, "size": 3}, Cause.NEVER_READY),
        ({"canceled_code": "timeout", "scheduled_ns": 1, "started_ns": 2, "size": 3}, Cause.WALLTIME),
    ],
)
def test_other_ends(facts: dict[str, Any], cause: Cause) -> None:
    assert cause_of_job(seen_job(**facts)) is cause


def test_an_end_in_words() -> None:
    assert words_of_end(seen_job(canceled_code="manual", canceled_for="by me")) == "replica 0: manual: by me"
    assert words_of_end(seen_job(status="failed", exit_code=3)) == "replica 0: failed, exit code 3"


def told(message: str) -> list[BeakerEvent]:
    return [BeakerEvent(status="x", message=message, num_times=3, first_ns=1, last_ns=2)]


def test_replicas_that_wait_alike_are_told_together() -> None:
    jobs = [seen_job(rank, 5) for rank in range(4)] + [seen_job(4, 5, scheduled_ns=1)]
    events = {f"job-{rank}": told("the workspace has no slots left") for rank in (0, 1, 3)}
    events |= {"job-2": told("no node has 8 GPUs"), "job-4": told("pulling image")}
    assert reasons_of(jobs, events) == (
        "replicas 0-1, 3 are not scheduled: the workspace has no slots left",
        "replica 2 is not scheduled: no node has 8 GPUs",
        "replica 4 is scheduled and not ready: pulling image",
    )


def test_tasks_that_wait_are_told_by_their_names() -> None:
    jobs = [seen_job(task="a"), *(seen_job(rank, 2, id=f"b-{rank}", task="b") for rank in (0, 1))]
    no_room = told("no room")
    assert reasons_of(jobs, {"job-0": no_room, "b-0": no_room, "b-1": told("no GPU")}) == (
        "a, b/0 are not scheduled: no room",
        "b/1 is not scheduled: no GPU",
    )


def test_a_replica_that_waits_for_others_says_so() -> None:
    job = seen_job(1, 2, scheduled_ns=1, ready_ns=2)
    assert reasons_of([seen_job(0, 2, started_ns=5), job], {"job-1": []}) == (
        "replica 1 is ready, waiting for the other replicas",
    )


def test_a_job_alone_is_it() -> None:
    assert reasons_of([seen_job()], {"job-0": []}) == ("it is not scheduled: Beaker has not considered it yet",)
    assert reasons_of([seen_job(scheduling="budget is used up")], {"job-0": []}) == (
        "it is not scheduled: budget is used up",
    )


def workspace(used: int, limit: int) -> BeakerWorkspace:
    limits = {"preemptible": limit, "not preemptible": 0}
    return BeakerWorkspace(id="w", name="lab/main", slot_limits=limits, slots_used={"preemptible": used})


@pytest.mark.parametrize(
    ("used", "limit", "words"),
    [(8, 8, "workspace lab/main uses 8 of 8 preemptible slots"), (7, 8, ""), (8, 0, "")],
)
def test_a_limit_that_is_reached_is_told(used: int, limit: int, words: str) -> None:
    assert slots_in_use(workspace(used, limit)) == words


def test_slots_are_told_where_the_scheduler_does_not() -> None:
    slots = slots_in_use(workspace(8, 8))
    assert reasons_of([seen_job()], {"job-0": told("no room")}, slots) == (f"it is not scheduled: no room; {slots}",)
    assert reasons_of([seen_job()], {"job-0": []}, slots) == (f"it is not scheduled: {slots}",)
    assert reasons_of([seen_job()], {"job-0": told("slot limit")}, slots) == ("it is not scheduled: slot limit",)
    assert reasons_of([seen_job(scheduled_ns=1)], {"job-0": told("pulling")}, slots) == (
        "it is scheduled and not ready: pulling",
    )
