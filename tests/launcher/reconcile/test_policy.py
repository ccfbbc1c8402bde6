"""Every branch of the policy, as a table: what the journal says, what the backend sees, what is to be done."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backends import JobState, Observation
from windlass.launcher.reconcile.policy import (
    Action,
    Cancel,
    EndLeftovers,
    EndTask,
    MarkLost,
    NextJob,
    RecordGone,
    Submit,
    Unqueue,
    after_end,
    has_loose_ends,
    reconcile,
)
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.retry import Budgets
from windlass.record.state import State, TaskFacts, fold

GONE, QUEUED, RUNNING, UNKNOWN = (
    Observation(state=state) for state in (JobState.GONE, JobState.QUEUED, JobState.RUNNING, JobState.UNKNOWN)
)
SCANCELLED = Observation(state=JobState.GONE, cause="cancelled", detail="cancelled by 0")
COMPLETED = Observation(state=JobState.GONE, cause="ok", detail="completed")
Fact = tuple[str, dict[str, Any]]


def intended(job: int = 1) -> Fact:
    return events.JOB_INTENDED, {"job": job, "token": f"t{job}", "backend": "local", "resets_budgets": job == 1}


def submitted(job: int = 1) -> Fact:
    return events.JOB_SUBMITTED, {"job": job, "backend_id": f"b{job}", "locator": ""}


def refused(job: int = 1, message: str = "no room for ever") -> Fact:
    return events.JOB_REFUSED, {"job": job, "cause": "start-failed", "message": message}


def stopped(job: int = 1) -> Fact:
    return events.STOP_REQUESTED, {"tasks": {"main": job}, "reason": "by hand", "is_checkpoint_wanted": False}


def started(attempt: int = 1, job: int = 1) -> Fact:
    facts = {"job": job, "attempt": attempt, "epoch": 1, "leader": 0, "address": "a", "port": 1}
    return events.ATTEMPT_STARTED, facts


def starting(rank: int = 0, attempt: int = 1) -> Fact:
    return events.PROCESS_STARTING, {"attempt": attempt, "rank": rank}


def process_ended(rank: int = 0, attempt: int = 1) -> Fact:
    return events.PROCESS_ENDED, {"attempt": attempt, "rank": rank, "end": {"cause": "ok"}}


def ended(cause: str, attempt: int = 1, job: int = 1, message: str = "") -> Fact:
    return events.ATTEMPT_ENDED, {
        "job": job,
        "attempt": attempt,
        "epoch": 1,
        "end": {"cause": cause, "message": message},
    }


def task_ended(verdict: str, job: int = 1) -> Fact:
    return events.TASK_ENDED, {"job": job, "attempt": 1, "verdict": verdict, "cause": "ok", "message": ""}


def task_of(*facts: Fact) -> TaskFacts:
    records = [
        Record(kind, "w", seq, 1000.0 + seq, {"task": "main", **data}) for seq, (kind, data) in enumerate(facts, 1)
    ]
    return fold(records).task("main")


def end_task(verdict: State, cause: str, message: str, *, job: int = 1, attempt: int = 1) -> EndTask:
    return EndTask(job=job, attempt=attempt, verdict=verdict, cause=cause, message=message)


LIVING = (intended(), submitted())
IN_ATTEMPT = (*LIVING, started(), starting())
LAST_WORD = "its job is gone; no reason is known"
NEVER_BEGAN = "its job is gone before it started; no reason is known"
CANCELLED = str(Cause.CANCELLED)


@pytest.mark.parametrize(
    ("facts", "observed", "expected"),
    [
        # Nothing was ever intended: the launching command died.
        ((), UNKNOWN, NextJob(job=1)),
        # Intended, and nobody knows whether it was taken.
        ((intended(),), UNKNOWN, Submit(job=1)),
        ((intended(), stopped()), UNKNOWN, Submit(job=1)),
        # Refused for good.
        ((intended(), refused()), UNKNOWN, end_task(State.FAILED, "start-failed", "no room for ever", attempt=0)),
        ((intended(), refused(), stopped()), UNKNOWN, end_task(State.STOPPED, CANCELLED, "by hand", attempt=0)),
        # It lives, or cannot be seen: whatever the journal says, the supervisor decides.
        (LIVING, QUEUED, None),
        (LIVING, RUNNING, None),
        (LIVING, UNKNOWN, None),
        ((*LIVING, stopped()), RUNNING, None),
        # Nobody is there to hear of the stop.
        ((*LIVING, stopped()), QUEUED, Cancel(job=1)),
        ((*IN_ATTEMPT, stopped()), QUEUED, Cancel(job=1)),
        # Its place says how it ended; that it calls it done does not make it so.
        (LIVING, SCANCELLED, MarkLost(job=1, attempt=1, cause=Cause.CANCELLED, message="cancelled by 0")),
        (IN_ATTEMPT, SCANCELLED, MarkLost(job=1, attempt=1, cause=Cause.CANCELLED, message="cancelled by 0")),
        (IN_ATTEMPT, COMPLETED, MarkLost(job=1, attempt=1, cause=Cause.UNKNOWN, message="completed")),
        (IN_ATTEMPT, RUNNING, None),
        (IN_ATTEMPT, UNKNOWN, None),
        ((*IN_ATTEMPT, ended("user-error")), RUNNING, None),
        ((*IN_ATTEMPT, ended("user-error")), UNKNOWN, None),
        # Gone before its first attempt.
        (LIVING, GONE, MarkLost(job=1, attempt=1, cause=Cause.UNKNOWN, message=NEVER_BEGAN)),
        ((*LIVING, stopped()), GONE, end_task(State.STOPPED, CANCELLED, "by hand", attempt=0)),
        # Gone in the middle of an attempt; also of one that was being stopped, which then ends by the policy.
        (IN_ATTEMPT, GONE, MarkLost(job=1, attempt=1, cause=Cause.UNKNOWN, message=LAST_WORD)),
        ((*IN_ATTEMPT, stopped()), GONE, MarkLost(job=1, attempt=1, cause=Cause.CANCELLED, message="by hand")),
        # Gone between an attempt's end and what follows from it.
        ((*IN_ATTEMPT, ended("ok")), GONE, end_task(State.SUCCEEDED, "ok", "")),
        ((*IN_ATTEMPT, ended("preempted")), GONE, NextJob(job=2)),
        # Told to go by a person at its place, which its supervisor cannot tell from a preemption; a node that is lost is.
        ((*IN_ATTEMPT, ended("preempted")), SCANCELLED, end_task(State.STOPPED, CANCELLED, "cancelled by 0")),
        ((*IN_ATTEMPT, ended("node-lost")), SCANCELLED, NextJob(job=2)),
        (
            (*IN_ATTEMPT, ended("user-error", message="exit 5")),
            GONE,
            end_task(State.FAILED, "user-error", "exit 5"),
        ),
        ((*IN_ATTEMPT, ended("preempted"), stopped()), GONE, end_task(State.STOPPED, CANCELLED, "by hand")),
        ((*IN_ATTEMPT, ended("secret-missing")), GONE, end_task(State.FAILED, "secret-missing", "")),
        # The next job: intended only, and gone before its first attempt.
        ((*IN_ATTEMPT, ended("preempted"), intended(2)), UNKNOWN, Submit(job=2)),
        (
            (*IN_ATTEMPT, ended("preempted"), intended(2), submitted(2)),
            GONE,
            MarkLost(job=2, attempt=2, cause=Cause.UNKNOWN, message=NEVER_BEGAN),
        ),
        (
            (*IN_ATTEMPT, ended("preempted"), intended(2), submitted(2), stopped(2)),
            GONE,
            end_task(State.STOPPED, CANCELLED, "by hand", job=2),
        ),
        # At its end: only what guard and supervisor left behind, and only when they are surely gone.
        ((*IN_ATTEMPT, process_ended(), ended("ok"), task_ended("succeeded")), GONE, None),
        ((*IN_ATTEMPT, task_ended("failed")), RUNNING, None),
        ((*IN_ATTEMPT, task_ended("failed")), UNKNOWN, None),
        ((*IN_ATTEMPT, task_ended("failed")), GONE, EndLeftovers(job=1, attempt=1, ranks=(0,))),
        (
            (*IN_ATTEMPT, starting(1), starting(2), process_ended(1), task_ended("failed")),
            GONE,
            EndLeftovers(job=1, attempt=1, ranks=(0, 2)),
        ),
    ],
)
def test_what_is_to_be_done(facts: tuple[Fact, ...], observed: Observation, expected: Action | None) -> None:
    assert reconcile(task_of(*facts), observed, Budgets(interrupted=1, failed=0)) == expected


def test_budgets_end_a_chain_of_lost_jobs() -> None:
    task = task_of(*IN_ATTEMPT, ended("node-lost", message="burnt"))
    assert reconcile(task, GONE, Budgets(interrupted=1)) == NextJob(job=2)
    assert reconcile(task, GONE, Budgets(interrupted=0)) == end_task(State.FAILED, "node-lost", "burnt")


def test_a_newer_attempt_is_swept_first() -> None:
    task = task_of(*IN_ATTEMPT, started(2), starting(3, attempt=2), task_ended("failed"))
    assert reconcile(task, GONE, Budgets()) == EndLeftovers(job=1, attempt=2, ranks=(3,))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ((), False),
        (IN_ATTEMPT, False),
        ((*IN_ATTEMPT, process_ended(), task_ended("succeeded")), False),
        ((*IN_ATTEMPT, task_ended("failed")), True),
    ],
)
def test_loose_ends(facts: tuple[Fact, ...], *, expected: bool) -> None:
    assert has_loose_ends(task_of(*facts)) is expected


ALIVE = Observation(state=JobState.GONE, signs="it gave a sign of life 3 s ago")


@pytest.mark.parametrize("facts", [LIVING, IN_ATTEMPT])
def test_a_job_that_gives_signs_of_life_is_not_lost(facts: tuple[Fact, ...]) -> None:
    assert reconcile(task_of(*facts), ALIVE, Budgets(3, 0)) is None


def test_after_a_supervisors_last_word_signs_of_life_hold_nothing_up() -> None:
    task = task_of(*IN_ATTEMPT, ended("preempted"))
    assert reconcile(task, ALIVE, Budgets(3, 0)) == NextJob(job=2)


def test_after_a_clients_word_they_do() -> None:
    """It had declared the job lost, and the job lives."""
    lost = (events.JOB_LOST, {"job": 1, "attempt": 1, "cause": "node-lost", "message": ""})
    assert reconcile(task_of(*IN_ATTEMPT, lost), ALIVE, Budgets(3, 0)) is None
    assert reconcile(task_of(*IN_ATTEMPT, lost), GONE, Budgets(3, 0)) == NextJob(job=2)


WAITING = Observation(state=JobState.QUEUED, waiting=("12", "13"))
RUNS_AND_WAITS = Observation(state=JobState.RUNNING, waiting=("13",))


@pytest.mark.parametrize(
    ("seen", "late_s", "expected"),
    [
        (GONE, 0.0, RecordGone(job=1)),
        (ALIVE, 0.0, None),
        (UNKNOWN, 1e6, None),
        (WAITING, 0.0, Unqueue(job=1, ids=("12", "13"))),
        (RUNS_AND_WAITS, 0.0, Unqueue(job=1, ids=("13",))),
        (QUEUED, 0.0, Cancel(job=1)),
        (RUNNING, 0.0, None),
        (RUNNING, 1e6, Cancel(job=1)),
    ],
)
def test_what_a_task_that_ended_has_left_goes(seen: Observation, late_s: float, expected: Action | None) -> None:
    task = task_of(*IN_ATTEMPT, ended("ok"), task_ended("succeeded"))
    assert task.end is not None
    assert after_end(task, 1, seen, task.end[3] + late_s) == expected
