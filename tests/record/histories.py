"""Random histories of runs: arbitrary records for the fold, and causal ones as clients and supervisors write them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.retry import Budgets, decide
from windlass.record.state import RunFacts, State

_TASKS = st.sampled_from(["a", "b"])
_NUMBERS = st.integers(1, 3)
_TEXT = st.sampled_from(["", "x", "y"])
_CAUSES = st.sampled_from([str(cause) for cause in Cause])
_DECLARED = st.fixed_dictionaries(
    {"after": st.just([]), "replicas": _NUMBERS, "interrupted": st.integers(0, 3), "failed": st.integers(0, 1)}
)
_END = st.fixed_dictionaries({"cause": _CAUSES, "code": st.integers(-9, 2), "message": _TEXT})

FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    events.RUN_CREATED: {
        "run": _TEXT,
        "name": _TEXT,
        "why": _TEXT,
        "plan_hash": _TEXT,
        "tasks": st.fixed_dictionaries({"a": _DECLARED}),
    },
    events.JOB_INTENDED: {
        "task": _TASKS,
        "job": _NUMBERS,
        "token": _TEXT,
        "backend": _TEXT,
        "resets_budgets": st.booleans(),
    },
    events.JOB_SUBMITTED: {"task": _TASKS, "job": _NUMBERS, "backend_id": _TEXT, "locator": _TEXT},
    events.JOB_REFUSED: {"task": _TASKS, "job": _NUMBERS, "cause": _CAUSES, "message": _TEXT},
    events.JOB_GONE: {"task": _TASKS, "job": _NUMBERS},
    events.JOB_LOST: {
        "task": _TASKS,
        "job": _NUMBERS,
        "attempt": st.integers(0, 2),
        "cause": _CAUSES,
        "message": _TEXT,
    },
    events.STOP_REQUESTED: {
        "tasks": st.dictionaries(_TASKS, _NUMBERS, max_size=2),
        "reason": _TEXT,
        "is_checkpoint_wanted": st.booleans(),
    },
    events.TASK_QUEUED: {"task": _TASKS, "job": _NUMBERS, "reason": _TEXT},
    events.LINK_QUEUED: {"task": _TASKS, "job": _NUMBERS, "link": _NUMBERS, "backend_id": _TEXT},
    events.LINK_STARTED: {
        "task": _TASKS,
        "job": _NUMBERS,
        "link": _NUMBERS,
        "backend_id": _TEXT,
        "incarnation": _TEXT,
        "host": _TEXT,
    },
    events.NODE_AVOIDED: {"task": _TASKS, "host": _TEXT, "reason": _TEXT},
    events.ATTEMPT_STARTED: {
        "task": _TASKS,
        "job": _NUMBERS,
        "attempt": _NUMBERS,
        "epoch": _NUMBERS,
        "leader": _TEXT,
        "address": _TEXT,
        "port": _NUMBERS,
        "link": _NUMBERS,
        "incarnation": _TEXT,
    },
    events.PROCESS_STARTING: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "incarnation": _TEXT,
    },
    events.PROCESS_STARTED: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "host": _TEXT,
        "process": _TEXT,
        "argv": st.just([]),
    },
    events.PROCESS_ENDED: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "end": _END,
        "is_doubtful": st.booleans(),
    },
    events.ATTEMPT_ENDED: {"task": _TASKS, "job": _NUMBERS, "attempt": _NUMBERS, "epoch": _NUMBERS, "end": _END},
    events.TASK_ENDED: {
        "task": _TASKS,
        "job": st.integers(0, 3),
        "attempt": _NUMBERS,
        "verdict": st.sampled_from(["succeeded", "failed", "stopped"]),
        "cause": _CAUSES,
        "message": _TEXT,
    },
    events.CHECKPOINT: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "path": _TEXT,
        "step": _NUMBERS,
        "phase_s": st.just(1.0),
    },
    events.EVALUATION_SKIPPED: {"task": _TASKS, "path": _TEXT, "step": _NUMBERS, "reason": _TEXT},
    events.PROGRESS_ENTRY: {"task": _TASKS, "attempt": _NUMBERS, "path": _TEXT},
    events.PROGRESS: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "phase": _TEXT,
        "step": _NUMBERS,
        "waits_for": _TEXT,
        "since": st.floats(0, 1e9),
    },
    events.METRICS: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "step": _NUMBERS,
        "values": st.just({"loss": 1.0}),
    },
    events.FINISH: {
        "task": _TASKS,
        "attempt": _NUMBERS,
        "rank": st.integers(0, 1),
        "code": st.integers(0, 2),
        "cause": _CAUSES,
        "message": _TEXT,
    },
    events.COOPERATES: {"task": _TASKS, "attempt": _NUMBERS, "rank": st.integers(0, 1)},
    events.OUTPUTS: {"task": _TASKS, "attempt": _NUMBERS, "num_files": _NUMBERS, "bytes": _NUMBERS, "digest": _TEXT},
    events.NOTE: {"task": _TASKS, "message": _TEXT},
    "of-a-later-version": {"task": _TASKS},
}
"""For each kind of record, what its facts may be; small ranges, so that writers often speak about the same thing."""


def _of_kind(kind: str) -> st.SearchStrategy[tuple[str, dict[str, Any], float]]:
    return st.tuples(st.just(kind), st.fixed_dictionaries(FIELDS[kind]), st.sampled_from([1.0, 2.0, 3.0]))


@st.composite
def writer_sequences(draw: st.DrawFn) -> list[list[Record]]:
    """What several writers wrote, each in its order; few kinds at a time, so that they contradict each other often."""
    kinds = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    sequence = st.lists(st.sampled_from(kinds).flatmap(_of_kind), max_size=5)
    return [
        [Record(kind, writer, seq, at, data) for seq, (kind, data, at) in enumerate(draw(sequence), 1)]
        for writer in ("client-1", "a.0", "a.1")
    ]


class History:
    """One run of one task, played by a client and two supervisors with a die; yields records as they happen."""

    def __init__(self, seed: int, budgets: Budgets) -> None:
        self.die = random.Random(seed)
        self.budgets = budgets
        self.facts = RunFacts()
        self.epoch = 1
        self._seqs: dict[str, int] = {}
        self._at = 1000.0

    @property
    def task(self) -> Any:
        return self.facts.task("a")

    def play(self, num_moves: int) -> Iterator[Record]:
        declared = {"after": [], "replicas": 1, "interrupted": self.budgets.interrupted, "failed": self.budgets.failed}
        created = {"run": "exp-1", "name": "exp", "why": "", "plan_hash": "h", "tasks": {"a": declared}}
        yield self._say("client-1", events.RUN_CREATED, **created)
        for _ in range(num_moves):
            yield from self._move()

    def _move(self) -> Iterator[Record]:
        state, newest = self.task.state, self.task.newest_attempt
        if self.die.random() < 0.05:
            self.epoch += 1
        if state in (State.QUEUED, State.RUNNING) and self.die.random() < 0.1:
            yield self._say(
                "client-2",
                events.STOP_REQUESTED,
                tasks={"a": self.task.newest_job},
                reason="enough",
                is_checkpoint_wanted=False,
            )
        elif not self.task.jobs or state in (State.FAILED, State.STOPPED):
            yield from self._submit()
        elif state is State.SUCCEEDED:
            yield self._say("client-1", events.NOTE, task="a", message="looked")
        elif newest is None or newest.end is not None or newest.job != self.task.newest_job:
            yield from self._start_or_end(newest)
        else:
            yield from self._run(newest.number)

    def _submit(self) -> Iterator[Record]:
        job = self.task.newest_job + 1
        facts = {"token": "t", "backend": "local", "resets_budgets": self.die.random() < 0.5}
        yield self._say("client-1", events.JOB_INTENDED, task="a", job=job, **facts)
        yield self._say("client-1", events.JOB_SUBMITTED, task="a", job=job, backend_id="1", locator="l")

    def _start_or_end(self, newest: Any) -> Iterator[Record]:
        """What a supervisor does between attempts: ask the policy, then end the task or start the next attempt."""
        job = self.task.newest_job
        if self.task.is_stop_wanted:
            yield self._end(job, "stopped", str(Cause.CANCELLED))
            return
        if newest is not None and newest.job == job:
            decision = decide(self.task, self.budgets)
            if decision.verdict is not None:
                yield self._end(job, str(decision.verdict), decision.cause)
                return
        number = newest.number + 1 if newest else 1
        facts = {"leader": "n0", "address": "n0", "port": 1}
        yield self._say("a.0", events.ATTEMPT_STARTED, task="a", job=job, attempt=number, epoch=self.epoch, **facts)

    def _run(self, attempt: int) -> Iterator[Record]:
        where = {"task": "a", "attempt": attempt, "rank": 0}
        if self.die.random() < 0.4:
            yield self._say(
                "a.0.report-1-1", events.CHECKPOINT, **where, path="p", step=self.die.randrange(100), phase_s=1.0
            )
            return
        cause = self.die.choice([str(cause) for cause in Cause if cause is not Cause.OK or self.die.random() < 0.5])
        yield self._say("a.0", events.PROCESS_ENDED, **where, end={"cause": cause})
        job = self.facts.task("a").attempts[attempt].job
        yield self._say(
            "a.0", events.ATTEMPT_ENDED, task="a", job=job, attempt=attempt, epoch=self.epoch, end={"cause": cause}
        )

    def _end(self, job: int, verdict: str, cause: str) -> Record:
        attempt = self.task.newest_attempt.number if self.task.newest_attempt else 0
        return self._say(
            "a.0", events.TASK_ENDED, task="a", job=job, attempt=attempt, verdict=verdict, cause=cause, message=""
        )

    def _say(self, writer: str, kind: str, **data: Any) -> Record:
        self._seqs[writer] = self._seqs.get(writer, 0) + 1
        self._at += self.die.choice([0.0, 1.0, 700.0])
        record = Record(kind, writer, self._seqs[writer], self._at, data)
        self.facts.apply(record)
        return record
