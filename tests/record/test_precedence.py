"""Which of two records of one fact counts, whatever the order in which they are read."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from windlass.record import events
from windlass.record.frames import Record
from windlass.record.state import RunFacts, State, fold


def said(kind: str, at: float = 1.0, writer: str = "w", seq: int = 1, **data: Any) -> Record:
    return Record(kind, writer, seq, at, {"task": "a", "job": 1, "attempt": 1, **data})


def started(address: str, at: float = 1.0, writer: str = "w", seq: int = 1, **data: Any) -> Record:
    return said(events.ATTEMPT_STARTED, at, writer, seq, address=address, port=1, **data)


def attempt_ended(cause: str, epoch: int, at: float = 1.0, writer: str = "w", seq: int = 1) -> Record:
    return said(events.ATTEMPT_ENDED, at, writer, seq, epoch=epoch, end={"cause": cause})


def task_ended(verdict: str, at: float = 1.0, *, job: int = 1, cause: str = "c", message: str = "m") -> Record:
    return said(events.TASK_ENDED, at, job=job, verdict=verdict, cause=cause, message=message)


def in_any_order(*records: Record) -> RunFacts:
    first, *others = (fold(order) for order in permutations(records))
    assert all(facts == first for facts in others)
    return first


@pytest.mark.parametrize(
    "records",
    [
        (started("counts", 2.0, epoch=2), started("other", 1.0, epoch=1)),
        (started("counts", 2.0, epoch=1), started("other", 1.0)),
        (started("counts", 1.0), started("other", 2.0, epoch=0)),
        (started("counts", 1.0, epoch=1), started("other", 2.0, epoch=1)),
        (started("counts", writer="x", epoch=1), started("other", writer="w", epoch=1)),
        (started("counts", seq=1, epoch=1), started("other", seq=2, epoch=1)),
        (started("counts", seq=2, epoch=1), started("other", seq=3, epoch=1)),
        (started("counts", 2.0, epoch=1), started("other", 1.0, epoch="9")),
    ],
)
def test_an_attempt_was_started_by_the_highest_epoch_and_then_the_first(records: tuple[Record, ...]) -> None:
    assert in_any_order(*records).task("a").attempts[1].address == "counts"


@pytest.mark.parametrize(
    "records",
    [
        (attempt_ended("counts", 2, 2.0), attempt_ended("other", 1, 1.0)),
        (attempt_ended("counts", 0, 2.0, "w"), attempt_ended("other", -1, 1.0, "client")),
        (attempt_ended("counts", 1, 2.0, seq=1), attempt_ended("other", 1, 1.0, seq=2)),
        (attempt_ended("counts", 1, 1.0, "v"), attempt_ended("other", 1, 2.0, "w")),
        (attempt_ended("counts", 1, writer="x"), attempt_ended("other", 1, writer="w")),
        (attempt_ended("counts", -1, 1.0, "c", 2), attempt_ended("other", -1, 2.0, "d", 1)),
        (attempt_ended("counts", -1, writer="d"), attempt_ended("other", -1, writer="c")),
        (attempt_ended("counts", -1, seq=2), attempt_ended("other", -1, seq=3)),
        (attempt_ended("counts", -7, 1.0), attempt_ended("other", -1, 2.0)),
    ],
)
def test_an_attempt_ended_as_the_last_leader_says_and_then_the_first(records: tuple[Record, ...]) -> None:
    (end,) = {attempt.end for attempt in in_any_order(*records).task("a").attempts.values()}
    assert end is not None
    assert end.cause == "counts"


@pytest.mark.parametrize(
    "records",
    [
        (task_ended("succeeded", 2.0, cause="counts"), task_ended("failed", 1.0)),
        (task_ended("failed", 1.0, cause="counts"), task_ended("stopped", 2.0)),
        (task_ended("stopped", 1.0, cause="counts"), task_ended("failed", 2.0)),
        (task_ended("failed", 1.0, cause="counts"), task_ended("stopped", 1.0)),
        (task_ended("failed", 1.0, cause="counts", message="z"), task_ended("failed", 1.0, cause="d", message="a")),
        (
            task_ended("failed", 1.0, cause="counts", message="z"),
            task_ended("failed", 2.0, cause="counts", message="a"),
        ),
    ],
)
def test_a_task_ended_by_its_success_and_then_the_first_end(records: tuple[Record, ...]) -> None:
    facts = in_any_order(*records)
    end = facts.task("a").end
    assert end is not None
    assert (str(end[0]), *end[1:]) == (
        *(records[0].data["verdict"], "counts", records[0].data["message"]),
        records[0].at,
    )


def test_a_run_ended_with_its_last_task_and_not_before() -> None:
    facts = fold([task_ended("succeeded", 5.0), Record(events.TASK_QUEUED, "w", 2, 6.0, _queued("b"))])
    assert (facts.ended_at, facts.task("b").state) == (0.0, State.QUEUED)
    other = Record(events.TASK_ENDED, "w", 3, 4.0, {**task_ended("failed").data, "task": "b"})
    assert in_any_order(task_ended("succeeded", 5.0), other).ended_at == 5.0
    assert fold([]).ended_at == 0.0


def _queued(task: str) -> dict[str, Any]:
    return {"task": task, "job": 1, "reason": "r"}


def test_damaged_records_are_counted() -> None:
    facts = RunFacts()
    for number in (1, 2):
        facts.apply(Record(events.TASK_QUEUED, "w", number, 1.0, {}))
        assert facts.num_damaged == number
    facts.apply(Record("kind-of-later", "w", 3, 1.0, {}))
    facts.apply(Record(events.TASK_QUEUED, "w", 4, 1.0, _queued("a")))
    assert facts.num_damaged == 2


def test_code_that_cooperates_listens() -> None:
    quiet = fold([started("n", epoch=1)]).task("a").attempts[1]
    loud = fold([started("n", epoch=1), said(events.COOPERATES, rank=0)]).task("a").attempts[1]
    assert (quiet.is_listening, loud.is_listening) == (False, True)


@pytest.mark.parametrize(("data", "is_held"), [({}, False), ({"is_held": True}, True), ({"is_held": False}, False)])
def test_a_job_is_held_if_its_record_says_so(data: dict[str, Any], is_held: bool) -> None:
    facts = fold([said(events.JOB_SUBMITTED, backend_id="7", locator="", **data)])
    assert facts.task("a").jobs[1].is_held is is_held
