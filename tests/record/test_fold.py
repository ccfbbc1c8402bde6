from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record.histories import FIELDS, History, writer_sequences
from windlass.record import events
from windlass.record.frames import Record, decode, encode
from windlass.record.retry import Budgets
from windlass.record.state import _HANDLERS, TRANSITIONS, End, State, fold

CREATED: dict[str, Any] = {
    "run": "exp-1",
    "name": "exp",
    "why": "",
    "plan_hash": "h",
    "tasks": {name: {"after": [], "replicas": 1, "interrupted": 5, "failed": 1} for name in ("a", "b")},
}


def records(*said: tuple[str, dict[str, Any]], writer: str = "w") -> list[Record]:
    return [Record(kind, writer, seq, 100.0 + seq, data) for seq, (kind, data) in enumerate(said, 1)]


def intended(job: int = 1, task: str = "a", **more: Any) -> tuple[str, dict[str, Any]]:
    facts = {"task": task, "job": job, "token": "t", "backend": "local", "resets_budgets": False}
    return events.JOB_INTENDED, {**facts, **more}


def started(attempt: int = 1, job: int = 1, task: str = "a") -> tuple[str, dict[str, Any]]:
    facts = {"task": task, "job": job, "attempt": attempt, "epoch": 1, "leader": "n", "address": "n", "port": 1}
    return events.ATTEMPT_STARTED, facts


def ended(verdict: str, job: int = 1, task: str = "a", cause: str = "killed") -> tuple[str, dict[str, Any]]:
    return events.TASK_ENDED, {
        "task": task,
        "job": job,
        "attempt": 1,
        "verdict": verdict,
        "cause": cause,
        "message": "m",
    }


def stop(job: int = 1) -> tuple[str, dict[str, Any]]:
    return events.STOP_REQUESTED, {"tasks": {"a": job}, "reason": "enough", "is_checkpoint_wanted": True}


def test_every_kind_that_the_fold_takes_in_is_tested() -> None:
    assert set(_HANDLERS) <= set(FIELDS)
    assert {getattr(events, name) for name in events.__all__} <= set(FIELDS)


@settings(max_examples=120, deadline=None)
@given(writer_sequences(), st.randoms(use_true_random=False))
def test_any_interleaving_of_writers_folds_to_the_same_facts(sequences: list[list[Record]], die: random.Random) -> None:
    expected = fold(record for sequence in sequences for record in sequence)
    queues = [list(sequence) for sequence in sequences if sequence]
    mixed = []
    while queues:
        queue = die.choice(queues)
        mixed.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
    facts = fold(mixed)
    assert facts == expected
    assert (facts.state, facts.cause, facts.ended_at) == (expected.state, expected.cause, expected.ended_at)
    die.shuffle(mixed)
    assert fold(mixed) == expected


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_states_of_a_run_move_along_the_table(seed: int, num_moves: int) -> None:
    history = History(seed, Budgets(interrupted=2, failed=1))
    task_state = run_state = State.PLANNED
    for record in history.play(num_moves):
        assert decode(encode(record)) == record
        for before, after in ((task_state, history.task.state), (run_state, history.facts.state)):
            assert after is before or after in TRANSITIONS[before], f"{before} -> {after} by {record.kind}"
        task_state, run_state = history.task.state, history.facts.state


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_every_history_can_be_read_in_any_order(seed: int) -> None:
    history = History(seed, Budgets())
    said = list(history.play(25))
    random.Random(seed).shuffle(said)
    assert fold(said) == history.facts


def test_a_success_is_left_by_nothing() -> None:
    assert TRANSITIONS[State.SUCCEEDED] == frozenset()
    facts = fold(
        records(intended(), started(), ended("succeeded"), intended(2), started(2, 2), ended("failed", 2), stop(2))
    )
    assert facts.task("a").state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ([], State.PLANNED),
        ([intended()], State.QUEUED),
        ([intended(), started()], State.RUNNING),
        ([intended(), (events.PROCESS_STARTING, {"task": "a", "attempt": 1, "rank": 0})], State.QUEUED),
        ([intended(), started(), stop()], State.STOPPING),
        ([intended(), started(), stop(), ended("stopped")], State.STOPPED),
        ([intended(), started(), stop(), ended("succeeded")], State.SUCCEEDED),
        ([intended(), started(), ended("failed")], State.FAILED),
        ([intended(), started(), ended("failed"), intended(2)], State.QUEUED),
        ([intended(), started(), ended("failed"), intended(2), started(2, 2)], State.RUNNING),
        ([intended(), stop(), ended("stopped"), intended(2)], State.QUEUED),
        ([ended("failed", 0, cause="sibling-failed")], State.FAILED),
        ([stop(1)], State.PLANNED),
    ],
)
def test_the_state_of_a_task(said: list[tuple[str, dict[str, Any]]], state: State) -> None:
    assert fold(records((events.RUN_CREATED, CREATED), *said)).task("a").state is state


@pytest.mark.parametrize(
    ("said", "state", "cause"),
    [
        ([], State.PLANNED, ""),
        ([intended()], State.QUEUED, ""),
        ([intended(), started()], State.RUNNING, ""),
        ([intended(), ended("succeeded", cause="ok")], State.RUNNING, ""),
        ([ended("succeeded", cause="ok"), ended("succeeded", task="b", cause="ok")], State.SUCCEEDED, "ok"),
        ([ended("failed"), ended("failed", 0, "b", "sibling-failed")], State.FAILED, "killed"),
        ([ended("failed", 0, "b", "sibling-failed"), ended("failed")], State.FAILED, "killed"),
        ([ended("stopped", cause="cancelled"), ended("succeeded", task="b", cause="ok")], State.STOPPED, "cancelled"),
        ([ended("stopped", cause="cancelled"), ended("failed", task="b")], State.FAILED, "killed"),
        ([intended(), started(), stop()], State.STOPPING, ""),
    ],
)
def test_the_state_of_a_run(said: list[tuple[str, dict[str, Any]]], state: State, cause: str) -> None:
    facts = fold(records((events.RUN_CREATED, CREATED), *said))
    ends = said and all(kind == events.TASK_ENDED for kind, _ in said) and len(said) == 2
    assert facts.state is state
    assert facts.cause == cause
    assert (facts.ended_at > 0) == bool(ends)


def attempt_end(cause: str, epoch: int = 1, job: int = 1) -> dict[str, Any]:
    return {"task": "a", "job": job, "attempt": 1, "epoch": epoch, "end": {"cause": cause}}


def test_who_is_believed_about_the_end_of_an_attempt() -> None:
    lost = Record(
        events.JOB_LOST,
        "client-1",
        1,
        1.0,
        {"task": "a", "job": 1, "attempt": 1, "cause": "node-lost", "message": "gone"},
    )
    early = Record(events.ATTEMPT_ENDED, "a.0", 5, 9.0, attempt_end("killed"))
    again = Record(events.ATTEMPT_ENDED, "a.0", 6, 2.0, attempt_end("stalled"))
    later = Record(events.ATTEMPT_ENDED, "a.1", 9, 9.0, attempt_end("preempted", epoch=2))
    for said, cause in (
        ([lost], "node-lost"),
        ([lost, early], "killed"),
        ([lost, early, again], "killed"),
        ([lost, early, later], "preempted"),
    ):
        for order in (said, said[::-1]):
            end = fold(order).task("a").attempts[1].end
            assert end is not None
            assert end.cause == cause


def test_a_job_that_was_lost_before_its_first_attempt_ends_none() -> None:
    facts = fold(
        records(
            intended(),
            (events.JOB_LOST, {"task": "a", "job": 1, "attempt": 0, "cause": "node-lost", "message": "gone"}),
        )
    )
    assert facts.task("a").attempts == {}
    assert facts.task("a").jobs[1].lost == "gone"


def test_the_reason_of_waiting_is_the_newest_and_goes_when_it_runs() -> None:
    said = [intended(), (events.TASK_QUEUED, {"task": "a", "job": 1, "reason": "no GPU"})]
    assert fold(records(*said)).task("a").reason == "no GPU"
    said.append((events.TASK_QUEUED, {"task": "a", "job": 1, "reason": ""}))
    assert fold(records(*said)).task("a").reason == ""
    assert fold(records(*said[:2], started())).task("a").reason == ""


def test_a_run_whose_last_task_waits_is_queued_and_attempts_of_tasks_do_not_add_up() -> None:
    first = [intended(), started(), ended("succeeded", cause="ok")]
    second = [intended(task="b"), (events.TASK_QUEUED, {"task": "b", "job": 1, "reason": "waits for 2 CPUs"})]
    assert fold(records(*first, intended(task="b"))).state is State.RUNNING
    assert fold(records(*first, *second)).state is State.QUEUED
    facts = fold(records(*first, *second, started(task="b")))
    assert (facts.state, facts.num_attempts) == (State.RUNNING, 1)
    assert fold(records(*first, started(attempt=2))).num_attempts == 2
    assert fold([]).num_attempts == 0


def test_progress_of_an_attempt_and_the_best_checkpoint_of_its_task() -> None:
    saves = [
        (events.CHECKPOINT, {"task": "a", "attempt": n, "rank": 0, "path": f"p{s}", "step": s, "phase_s": 1.0})
        for n, s in ((1, 50), (2, 20))
    ]
    entry = (events.PROGRESS_ENTRY, {"task": "a", "attempt": 3, "path": "step-9"})
    task = fold(records(*saves, entry)).task("a")
    assert (task.best_step, task.last_checkpoint, task.has_reported) == (50, (50, "p50"), True)
    assert [task.attempts[n].has_progress for n in (1, 2, 3)] == [True, True, True]
    assert task.entries == {"step-9"}
    assert task.newest_checkpoint == (50, "p50"), (
        "a committed checkpoint comes before a file that only has the right name"
    )
    later = [(events.PROGRESS_ENTRY, {"task": "a", "attempt": n, "path": f"a2/ckpt-{n}0.pt"}) for n in (5, 10, 4)]
    last = (events.PROGRESS_ENTRY, {"task": "a", "attempt": 4, "path": "a2/final"})
    assert fold(records(entry, *later, last)).task("a").newest_checkpoint == (100, "a2/ckpt-100.pt")
    assert fold(records(last)).task("a").newest_checkpoint == (-1, "a2/final")
    assert fold(records(started())).task("a").newest_checkpoint == (-1, "")
    assert not fold(records(started())).task("a").attempts[1].has_progress


def test_kinds_of_later_versions_are_passed_over() -> None:
    facts = fold(records(intended(), ("teleported", {"task": "z"})))
    assert set(facts.tasks) == {"a"}
    assert facts.updated_at == 101.0


def test_an_end_comes_back_from_its_data() -> None:
    end = End("killed", -9, 2, "n0", "m", ("l1", "l2"), "Traceback", 5.0)
    for known in (end, End("killed", rank=0), End("", code=0, rank=-1, at=1.0)):
        assert End.from_data(json.loads(json.dumps(known.to_data()))) == known
    assert End("ok").to_data() == {"cause": "ok"}
    assert End.from_data({"cause": "ok", "of_a_later_version": 1}) == End("ok")


def test_the_worst_finish_of_a_replica_counts() -> None:
    said = [
        (events.FINISH, {"task": "a", "attempt": 1, "rank": 0, "code": code, "cause": "", "message": ""})
        for code in (0, 1)
    ]
    assert fold(records(*said)).finishes == {("a", 1, 0): (1, "", "")}
