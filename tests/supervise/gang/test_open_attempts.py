from __future__ import annotations

from typing import Any

from windlass.record import events
from windlass.record.frames import Record
from windlass.record.state import TaskFacts, fold
from windlass.supervise.gang.open_attempts import newest_open_attempt, open_processes

END = {"cause": "node-lost", "rank": 0, "message": "its supervisor was lost, and its job is gone"}


def task_of(*ends: dict[str, Any]) -> TaskFacts:
    """A task whose attempt 1, begun by start 11.0, ended; `ends`: records of the end of its process, as they came."""
    started = {"job": 1, "attempt": 1, "epoch": 1, "leader": "n", "address": "", "port": 1, "incarnation": "11.0"}
    facts = [
        (events.ATTEMPT_STARTED, started),
        (events.PROCESS_STARTING, {"attempt": 1, "rank": 0, "incarnation": "11.0"}),
        (events.ATTEMPT_ENDED, {"job": 1, "attempt": 1, "epoch": 1, "end": END}),
        *((events.PROCESS_ENDED, {"attempt": 1, "rank": 0, "end": END, **end}) for end in ends),
    ]
    records = (Record(kind, "w", seq, float(seq), {"task": "t", **data}) for seq, (kind, data) in enumerate(facts, 1))
    return fold(records).task("t")


def test_a_process_whose_end_nobody_recorded_may_still_run() -> None:
    assert open_processes(task_of(), "12.0") == [(1, 0)]
    assert open_processes(task_of({}), "12.0") == []


def test_a_client_that_cannot_reach_the_machine_leaves_the_next_start_to_wait() -> None:
    task = task_of({"is_doubtful": True})
    assert task.attempts[1].replicas[0].end is not None
    assert newest_open_attempt(task, "12.0") == 1
    assert newest_open_attempt(task, "11.0") == 0


def test_a_later_record_of_what_was_in_doubt_settles_it_in_any_order() -> None:
    assert open_processes(task_of({"is_doubtful": True}, {}), "12.0") == []
    assert open_processes(task_of({}, {"is_doubtful": True}), "12.0") == []
