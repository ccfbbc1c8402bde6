"""What a run's journal says: facts about tasks, jobs and attempts, and the states derived from them.

The fold does not depend on the order of records of different writers: every fact has one key (task, job, attempt,
rank) and, where two writers may speak about the same key, a stated precedence. So a journal read in any order gives
the same state, and no vector clocks are needed (docs/decisions/0002-order-free-fold.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Callable

from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.lifecycle import TRANSITIONS, State
from windlass.record.shapes import is_well_formed

__all__ = ["TRANSITIONS", "Attempt", "End", "Job", "Replica", "RunFacts", "State", "Task", "fold"]


@dataclass(frozen=True)
class End:
    """How a process, a replica or an attempt ended.

    Attributes:
        code: exit code; negative is the number of the signal that ended it.
        rank: the replica that ended first and so is the cause; -1 where there is none.
        message: one line for people.
        tail: the last lines printed, redacted.
        traceback: the Python traceback found in the log, redacted.
    """

    cause: str
    code: int = 0
    rank: int = -1
    host: str = ""
    message: str = ""
    tail: tuple[str, ...] = ()
    traceback: str = ""
    at: float = 0.0

    def to_data(self) -> dict[str, Any]:
        """The JSON form, defaults left out."""
        defaults = {item.name: item.default for item in fields(self)}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> End:
        """Read back `to_data`; unknown keys of later versions are ignored."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known["tail"] = tuple(known.get("tail", ()))
        return cls(**known)


@dataclass
class Replica:
    """One node's share of an attempt."""

    host: str = ""
    process: str = ""
    is_starting: bool = False
    end: End | None = None


@dataclass
class Attempt:
    """One execution of a task's gang."""

    number: int
    job: int = 0
    started_at: float = 0.0
    first_seen_at: float = 0.0
    last_seen_at: float = 0.0
    address: str = ""
    port: int = 0
    replicas: dict[int, Replica] = field(default_factory=dict)
    end: End | None = None
    ended_at: float = 0.0
    end_rank: tuple[int, int, float, str, int] = (-2, 0, 0.0, "", 0)
    checkpoint_step: int = -1
    num_checkpoints: int = 0
    num_entries: int = 0
    is_listening: bool = False

    @property
    def has_progress(self) -> bool:
        """Whether it left a committed checkpoint or a new stable entry behind."""
        return self.num_checkpoints + self.num_entries > 0

    @property
    def running_s(self) -> float:
        """How long it ran, for one that ended; one that was lost, as far as it was heard of."""
        if not self.started_at or self.end is None:
            return 0.0
        ended_at = self.last_seen_at if self.is_end_doubtful else self.end.at or self.ended_at
        return max(0.0, ended_at - self.started_at)

    @property
    def is_end_doubtful(self) -> bool:
        """Whether only a client says that it ended; a supervisor's word outranks it."""
        return self.end_rank[0] < 0

    @property
    def has_started(self) -> bool:
        """Whether user code may have run in it."""
        return self.started_at > 0 or any(replica.is_starting for replica in self.replicas.values())


@dataclass
class Job:
    """One submission of a task to a backend."""

    number: int
    token: str = ""
    backend: str = ""
    resets_budgets: bool = False
    intended_at: float = 0.0
    backend_id: str = ""
    locator: str = ""
    is_submitted: bool = False
    refusal: str = ""
    lost: str = ""
    reason: tuple[float, str] = (0.0, "")


@dataclass
class Task:
    """A named step of the experiment, as far as the journal knows."""

    name: str
    after: tuple[str, ...] = ()
    num_replicas: int = 1
    jobs: dict[int, Job] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    ends: dict[int, tuple[State, str, str, float]] = field(default_factory=dict)
    stopped_job: int = 0
    stopped_at: float = 0.0
    is_checkpoint_wanted: bool = False
    stop_reason: str = ""
    best_step: int = -1
    has_reported: bool = False
    last_checkpoint: tuple[int, str] = (-1, "")
    phase: tuple[float, str, int] = (0.0, "", -1)
    entries: set[str] = field(default_factory=set)

    @property
    def newest_job(self) -> int:
        """Number of the newest submission; 0 before the first."""
        return max(self.jobs, default=0)

    @property
    def newest_attempt(self) -> Attempt | None:
        """The attempt with the highest number."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def end(self) -> tuple[State, str, str, float] | None:
        """(verdict, cause, message, time) when it ended and nobody asked for more since.

        A success is final whatever came later; any other end is undone by a newer job.
        """
        for job in sorted(self.ends):
            if self.ends[job][0] is State.SUCCEEDED:
                return self.ends[job]
        return self.ends.get(max(self.newest_job, *self.ends)) if self.ends else None

    @property
    def is_stop_wanted(self) -> bool:
        """Whether a stop was asked for that covers the newest job.

        It also covers jobs that only continue the stopped one (a client may intend the next job in the moment of the
        stop), but none that a person asked for after the task's end.
        """
        covered = self.stopped_job
        while covered and covered + 1 in self.jobs and covered not in self.ends:
            covered += 1
        return 0 < self.newest_job <= covered

    @property
    def state(self) -> State:
        """The state, derived from the facts."""
        end = self.end
        if end is not None:
            return end[0]
        if not self.jobs:
            return State.PLANNED
        if self.is_stop_wanted:
            return State.STOPPING
        newest = self.newest_attempt
        if newest is not None and newest.job == self.newest_job and newest.has_started:
            return State.RUNNING
        return State.QUEUED

    @property
    def reason(self) -> str:
        """Why it waits, in words; empty when it does not."""
        if self.state is not State.QUEUED:
            return ""
        return self.jobs[self.newest_job].reason[1]


@dataclass
class RunFacts:
    """Everything the journal of one run says, metrics left out."""

    run: str = ""
    name: str = ""
    why: str = ""
    plan_hash: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    tasks: dict[str, Task] = field(default_factory=dict)
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[tuple[float, str, int, str, str]] = field(default_factory=list)
    outputs: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    finishes: dict[tuple[str, int, int], tuple[int, str, str]] = field(default_factory=dict)
    num_damaged: int = 0
    first_said: dict[tuple[str | int, ...], tuple[float, str, int]] = field(default_factory=dict, repr=False)

    @property
    def state(self) -> State:
        """The run's state, derived from its tasks'."""
        states = [task.state for task in self.tasks.values()]
        if not states or all(state is State.PLANNED for state in states):
            return State.PLANNED
        if all(state.is_terminal for state in states):
            return _verdict(states)
        for state in (State.STOPPING, State.RUNNING):
            if state in states:
                return state
        return State.RUNNING if State.SUCCEEDED in states else State.QUEUED

    @property
    def ended_at(self) -> float:
        """When the last task ended; 0 while one is not at its end."""
        ends = [task.end for task in self.tasks.values()]
        return max((end[3] for end in ends if end), default=0.0) if ends and all(ends) else 0.0

    @property
    def cause(self) -> str:
        """The cause of the run's end: that of the first task that failed, or else that was stopped."""
        ends = [task.end for task in self.tasks.values() if task.end is not None]
        bad = sorted(
            (end for end in ends if end[0] is not State.SUCCEEDED),
            key=lambda end: (end[0] is not State.FAILED, end[1] == Cause.SIBLING_FAILED, end[3], end[1]),
        )
        return bad[0][1] if bad else (str(Cause.OK) if self.state is State.SUCCEEDED else "")

    def task(self, name: str) -> Task:
        """The task of that name, made if new."""
        if name not in self.tasks:
            self.tasks[name] = Task(name)
        return self.tasks[name]

    def apply(self, record: Record) -> None:
        """Take one record in; records of unknown kinds (of later versions) are passed over, malformed ones counted."""
        handler = _HANDLERS.get(record.kind)
        if handler is None:
            return
        try:
            if is_well_formed(record):
                handler(self, record)
                self.updated_at = max(self.updated_at, record.at)
                return
        except (KeyError, TypeError, ValueError, AttributeError):  # no shape is as exact as the code that reads it
            self.num_damaged += 1
            return
        self.num_damaged += 1


def fold(records: Iterable[Record]) -> RunFacts:
    """The facts of a whole journal."""
    facts = RunFacts()
    for record in records:
        facts.apply(record)
    return facts


def _verdict(states: Iterable[State]) -> State:
    states = set(states)
    if State.FAILED in states:
        return State.FAILED
    return State.STOPPED if State.STOPPED in states else State.SUCCEEDED


def _is_first(facts: RunFacts, record: Record, *key: str | int) -> bool:
    """Whether no earlier record was seen that states the same fact; where two writers state it, the earlier holds."""
    said, key = (record.at, record.writer, record.seq), (record.kind, *key)
    known = facts.first_said.get(key)
    if known is not None and known <= said:
        return False
    facts.first_said[key] = said
    return True


def _is_first_of_rank(facts: RunFacts, record: Record) -> bool:
    return _is_first(facts, record, record.data["task"], record.data["attempt"], record.data["rank"])


def _is_first_of_job(facts: RunFacts, record: Record) -> bool:
    return _is_first(facts, record, record.data["task"], record.data["job"])


def _job(facts: RunFacts, data: Mapping[str, Any]) -> Job:
    jobs = facts.task(data["task"]).jobs
    number = data["job"]
    if number not in jobs:
        jobs[number] = Job(number)
    return jobs[number]


def _attempt(facts: RunFacts, record: Record) -> Attempt:
    attempts = facts.task(record.data["task"]).attempts
    number = record.data["attempt"]
    if number not in attempts:
        attempts[number] = Attempt(number)
    attempt = attempts[number]
    if not attempt.first_seen_at or record.at < attempt.first_seen_at:
        attempt.first_seen_at = record.at
    if record.kind not in (events.JOB_LOST, events.ATTEMPT_ENDED):  # others may say those much later
        attempt.last_seen_at = max(attempt.last_seen_at, record.at)
    attempt.job = max(attempt.job, record.data.get("job", 0))
    return attempt


def _replica(facts: RunFacts, record: Record) -> Replica:
    return _attempt(facts, record).replicas.setdefault(record.data["rank"], Replica())


def _run_created(facts: RunFacts, record: Record) -> None:
    if not _is_first(facts, record):
        return
    data = record.data
    facts.run, facts.name, facts.why, facts.plan_hash = data["run"], data["name"], data["why"], data["plan_hash"]
    facts.created_at = record.at
    for name, declared in data["tasks"].items():
        task = facts.task(name)
        task.after, task.num_replicas = tuple(declared["after"]), declared["replicas"]
        facts.budgets[name] = (declared["interrupted"], declared["failed"])


def _job_intended(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    if not _is_first_of_job(facts, record):
        return
    job.token, job.backend = record.data["token"], record.data["backend"]
    job.resets_budgets, job.intended_at = record.data["resets_budgets"], record.at


def _job_submitted(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    job.is_submitted = True
    if _is_first_of_job(facts, record):
        job.backend_id, job.locator = record.data["backend_id"], record.data["locator"]


def _job_refused(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    if _is_first_of_job(facts, record):
        job.refusal = record.data["message"]


def _job_lost(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    job.lost = max(job.lost, record.data["message"])
    if record.data["attempt"]:
        _end_attempt(_attempt(facts, record), End(record.data["cause"], message=record.data["message"]), -1, record)


def _stop_requested(facts: RunFacts, record: Record) -> None:
    for name, job in record.data["tasks"].items():
        task = facts.task(name)
        known = (task.stopped_job, task.stopped_at, task.is_checkpoint_wanted, task.stop_reason)
        said = (job, record.at, record.data["is_checkpoint_wanted"], record.data["reason"])
        task.stopped_job, task.stopped_at, task.is_checkpoint_wanted, task.stop_reason = max(known, said)


def _task_queued(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    job.reason = max(job.reason, (record.at, record.data["reason"]))


def _attempt_started(facts: RunFacts, record: Record) -> None:
    attempt = _attempt(facts, record)
    if _is_first(facts, record, record.data["task"], attempt.number):
        attempt.started_at, attempt.address, attempt.port = record.at, record.data["address"], record.data["port"]


def _process_starting(facts: RunFacts, record: Record) -> None:
    _replica(facts, record).is_starting = True


def _process_started(facts: RunFacts, record: Record) -> None:
    replica = _replica(facts, record)
    if _is_first_of_rank(facts, record):
        replica.process, replica.host = record.data["process"], record.data["host"]


def _process_ended(facts: RunFacts, record: Record) -> None:
    replica = _replica(facts, record)
    if _is_first_of_rank(facts, record):
        replica.end = End.from_data(record.data["end"])


def _attempt_ended(facts: RunFacts, record: Record) -> None:
    end = End.from_data(record.data["end"])
    _end_attempt(_attempt(facts, record), end, record.data["epoch"], record)


def _end_attempt(attempt: Attempt, end: End, epoch: int, record: Record) -> None:
    """A supervisor's word outranks a client's, a later leader's an earlier one's, the first of a writer its later ones."""
    precedence = (epoch, -record.seq if epoch >= 0 else 0, -record.at, record.writer, -record.seq)
    if precedence > attempt.end_rank:
        attempt.end, attempt.end_rank, attempt.ended_at = end, precedence, record.at


def _task_ended(facts: RunFacts, record: Record) -> None:
    data = record.data
    ends = facts.task(data["task"]).ends
    end = (State(data["verdict"]), data["cause"], data["message"], record.at)
    known = ends.get(data["job"])
    ends[data["job"]] = end if known is None else min(known, end, key=_end_order)


def _end_order(end: tuple[State, str, str, float]) -> tuple[bool, float, str, str, str]:
    """A success before all others, then the earliest; the rest only makes the order a total one."""
    return (end[0] is not State.SUCCEEDED, end[3], str(end[0]), end[1], end[2])


def _checkpoint(facts: RunFacts, record: Record) -> None:
    task, attempt = facts.task(record.data["task"]), _attempt(facts, record)
    step = record.data["step"]
    task.has_reported = True
    attempt.checkpoint_step = max(attempt.checkpoint_step, step)
    attempt.num_checkpoints += 1
    task.best_step = max(task.best_step, step)
    task.last_checkpoint = max(task.last_checkpoint, (step, record.data["path"]))


def _progress_entry(facts: RunFacts, record: Record) -> None:
    task = facts.task(record.data["task"])
    task.has_reported = True
    task.entries.add(record.data["path"])
    _attempt(facts, record).num_entries += 1


def _cooperates(facts: RunFacts, record: Record) -> None:
    _attempt(facts, record).is_listening = True


def _progress(facts: RunFacts, record: Record) -> None:
    task = facts.task(record.data["task"])
    task.phase = max(task.phase, (record.at, record.data["phase"], record.data["step"]))
    _attempt(facts, record)


def _finish(facts: RunFacts, record: Record) -> None:
    data = record.data
    key = (data["task"], data["attempt"], data["rank"])
    finish = (data["code"], data["cause"], data["message"])
    facts.finishes[key] = max(facts.finishes.get(key, finish), finish)


def _outputs(facts: RunFacts, record: Record) -> None:
    data = record.data
    newest = (data["attempt"], data["num_files"], data["bytes"], data["digest"])
    facts.outputs[data["task"]] = max(facts.outputs.get(data["task"], newest), newest)


def _note(facts: RunFacts, record: Record) -> None:
    facts.notes.append((record.at, record.writer, record.seq, record.data.get("task", ""), record.data["message"]))
    facts.notes.sort()


_HANDLERS: dict[str, Callable[[RunFacts, Record], None]] = {
    events.RUN_CREATED: _run_created,
    events.JOB_INTENDED: _job_intended,
    events.JOB_SUBMITTED: _job_submitted,
    events.JOB_REFUSED: _job_refused,
    events.JOB_LOST: _job_lost,
    events.STOP_REQUESTED: _stop_requested,
    events.TASK_QUEUED: _task_queued,
    events.ATTEMPT_STARTED: _attempt_started,
    events.PROCESS_STARTING: _process_starting,
    events.PROCESS_STARTED: _process_started,
    events.PROCESS_ENDED: _process_ended,
    events.ATTEMPT_ENDED: _attempt_ended,
    events.TASK_ENDED: _task_ended,
    events.CHECKPOINT: _checkpoint,
    events.PROGRESS_ENTRY: _progress_entry,
    events.COOPERATES: _cooperates,
    events.PROGRESS: _progress,
    events.FINISH: _finish,
    events.OUTPUTS: _outputs,
    events.NOTE: _note,
}
