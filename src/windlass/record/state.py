"""State of a run, derived from the records in its journal.

The facts do not depend on the order of records of different writers: every fact has one key (task, job, attempt,
rank) and, where two writers may record the same key, a defined precedence. So a journal read in any order gives
the same state, and no vector clocks are needed (docs/decisions/0002-order-free-fold.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Callable

from windlass.core.dataclass import dataclass
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.evaluation import next_evaluation
from windlass.record.facts import (
    Attempt,
    End,
    EvaluationRule,
    JobFacts,
    Link,
    Replica,
    SavedCheckpoint,
    TaskFacts,
    step_in_name,
)
from windlass.record.frames import Record
from windlass.record.lifecycle import TRANSITIONS, State
from windlass.record.retry import Budgets
from windlass.record.shapes import is_well_formed

__all__ = [
    "TRANSITIONS",
    "Attempt",
    "End",
    "JobFacts",
    "Link",
    "Replica",
    "RunFacts",
    "State",
    "TaskFacts",
    "fold",
    "jobs_to_let_go",
]


@dataclass
class RunFacts:
    """Facts about one run in its journal, except metrics.

    Attributes:
        num_damaged: number of damaged records, which were skipped.
        damage: description of what is missing from the journal, by file; set by the reader of the run's folder.
    """

    run: str = ""
    name: str = ""
    why: str = ""
    plan_hash: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    tasks: dict[str, TaskFacts] = field(default_factory=dict)
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[tuple[float, str, int, str, str]] = field(default_factory=list)
    outputs: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    finishes: dict[tuple[str, int, int], tuple[int, str, str]] = field(default_factory=dict)
    num_damaged: int = 0
    damage: list[str] = field(default_factory=list)
    first_said: dict[tuple[str | int, ...], tuple[float, str, int]] = field(default_factory=dict, repr=False)

    @property
    def state(self) -> State:
        """Return the run's state, derived from the states of its tasks."""
        states = [task.state for task in self.tasks.values()]
        if not states or all(state is State.PLANNED for state in states):
            return State.PLANNED
        if all(state.is_terminal for state in states):
            return _verdict(states)
        for state in (State.STOPPING, State.RUNNING):
            if state in states:
                return state
        is_waiting = any(task.reason for task in self.tasks.values())  # for CPUs of this machine, for example
        return State.RUNNING if State.SUCCEEDED in states and not is_waiting else State.QUEUED

    @property
    def num_attempts(self) -> int:
        """Return the largest number of attempts that any task had; tasks are not added up."""
        return max((len(task.attempts) for task in self.tasks.values()), default=0)

    @property
    def ended_at(self) -> float:
        """Return the time at which the last task ended; 0 while any task has not ended."""
        ends = [task.end for task in self.tasks.values()]
        return max((end[3] for end in ends if end), default=0.0) if ends and all(ends) else 0.0

    @property
    def cause(self) -> str:
        """Return the cause of the run's end: that of the first failed task, or else of the first stopped task."""
        ends = [task.end for task in self.tasks.values() if task.end is not None]
        bad = sorted(
            (end for end in ends if end[0] is not State.SUCCEEDED),
            key=lambda end: (end[0] is not State.FAILED, end[1] == Cause.SIBLING_FAILED, end[3], end[1]),
        )
        return bad[0][1] if bad else (str(Cause.OK) if self.state is State.SUCCEEDED else "")

    def task(self, name: str) -> TaskFacts:
        """Return the task with this name, created if it is new."""
        if name not in self.tasks:
            self.tasks[name] = TaskFacts(name)
        return self.tasks[name]

    def apply(self, record: Record) -> None:
        """Apply one record; unknown kinds (from later versions) are ignored, malformed records are counted."""
        handler = _HANDLERS.get(record.kind)
        if handler is None:
            return
        try:
            if is_well_formed(record):
                handler(self, record)
                self.updated_at = max(self.updated_at, record.at)
                return
        except (KeyError, TypeError, ValueError, AttributeError):  # malformed in a way that its shape allows
            self.num_damaged += 1
            return
        self.num_damaged += 1


def fold(records: Iterable[Record]) -> RunFacts:
    """Return the facts in a complete journal."""
    facts = RunFacts()
    for record in records:
        facts.apply(record)
    return facts


def jobs_to_let_go(facts: RunFacts) -> dict[str, JobFacts]:
    """Return the held jobs, by task, that no longer wait for any task.

    A job whose upstream task did not succeed is included: it starts and detects that. So is a job with a checkpoint to
    evaluate.
    """
    found = {}
    for name, task in list(facts.tasks.items()):
        job = task.jobs.get(task.newest_job)
        if job is None or not job.is_held or job.links or task.end:
            continue
        before = [facts.task(other).state for other in task.after]
        is_due = all(state is State.SUCCEEDED for state in before) or any(
            state.is_terminal and state is not State.SUCCEEDED for state in before
        )
        if task.evaluates is not None:
            budgets = Budgets(*facts.budgets.get(name, (50, 0)))
            is_due = not next_evaluation(task, facts.task(task.evaluates.of), budgets).reason
        if is_due:
            found[name] = job
    return found


def _verdict(states: Iterable[State]) -> State:
    states = set(states)
    if State.FAILED in states:
        return State.FAILED
    return State.STOPPED if State.STOPPED in states else State.SUCCEEDED


def _is_first(facts: RunFacts, record: Record, *key: str | int) -> bool:
    """Return whether this is the first record of its fact; if two writers record it, the earlier one counts."""
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


def _job(facts: RunFacts, data: Mapping[str, Any]) -> JobFacts:
    jobs = facts.task(data["task"]).jobs
    number = data["job"]
    if number not in jobs:
        jobs[number] = JobFacts(number)
    return jobs[number]


def _attempt(facts: RunFacts, record: Record) -> Attempt:
    attempts = facts.task(record.data["task"]).attempts
    number = record.data["attempt"]
    if number not in attempts:
        attempts[number] = Attempt(number)
    attempt = attempts[number]
    if not attempt.first_seen_at or record.at < attempt.first_seen_at:
        attempt.first_seen_at = record.at
    if record.kind not in (events.JOB_LOST, events.ATTEMPT_ENDED):  # other writers may record those much later
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
        task.evaluates = EvaluationRule.from_data(declared["evaluates"]) if declared.get("evaluates") else None
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
        job.is_held = record.data.get("is_held") is True


def _job_refused(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    if _is_first_of_job(facts, record):
        job.refusal = record.data["message"]


def _job_lost(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    job.lost = max(job.lost, record.data["message"])
    if record.data["attempt"]:
        _end_attempt(_attempt(facts, record), End(record.data["cause"], message=record.data["message"]), -1, record)


def _job_gone(facts: RunFacts, record: Record) -> None:
    _job(facts, record.data).is_gone = True


def _stop_requested(facts: RunFacts, record: Record) -> None:
    for name, job in record.data["tasks"].items():
        task = facts.task(name)
        known = (task.stopped_job, task.stopped_at, task.is_checkpoint_wanted, task.stop_reason)
        said = (job, record.at, record.data["is_checkpoint_wanted"], record.data["reason"])
        task.stopped_job, task.stopped_at, task.is_checkpoint_wanted, task.stop_reason = max(known, said)


def _task_queued(facts: RunFacts, record: Record) -> None:
    job = _job(facts, record.data)
    job.reason = max(job.reason, (record.at, record.data["reason"]))


def _link(facts: RunFacts, record: Record) -> Link:
    number = record.data["link"]
    return _job(facts, record.data).links.setdefault(number, Link(number))


def _link_queued(facts: RunFacts, record: Record) -> None:
    link = _link(facts, record)
    if not link.started_at:  # the job that began is the link, even if other jobs were queued for it
        link.backend_id = max(link.backend_id, record.data["backend_id"])


def _link_started(facts: RunFacts, record: Record) -> None:
    link, data = _link(facts, record), record.data
    known = (link.started_at, link.incarnation, link.backend_id, link.host)
    said = (record.at, data["incarnation"], data["backend_id"], data["host"])
    link.started_at, link.incarnation, link.backend_id, link.host = max(known, said)


def _node_avoided(facts: RunFacts, record: Record) -> None:
    avoided, host = facts.task(record.data["task"]).avoided, record.data["host"]
    avoided[host] = max(avoided.get(host, ""), record.data["reason"])


def _attempt_started(facts: RunFacts, record: Record) -> None:
    attempt = _attempt(facts, record)
    epoch = record.data.get("epoch", 0)
    precedence = (epoch if isinstance(epoch, int) else 0, -record.at, record.writer, -record.seq)
    if precedence > attempt.start_rank:
        attempt.start_rank = precedence
        attempt.started_at, attempt.address, attempt.port = record.at, record.data["address"], record.data["port"]
        attempt.link, attempt.incarnation = record.data.get("link", 1), record.data.get("incarnation", "")
        evaluates = record.data.get("evaluates") or {}
        attempt.evaluates = SavedCheckpoint(evaluates.get("step", -1), evaluates.get("path", ""))
        attempt.evaluated_digest = evaluates.get("digest", "")


def _process_starting(facts: RunFacts, record: Record) -> None:
    replica = _replica(facts, record)
    replica.is_starting = True
    if _is_first_of_rank(facts, record):
        replica.incarnation = record.data.get("incarnation", "")


def _process_started(facts: RunFacts, record: Record) -> None:
    replica = _replica(facts, record)
    if _is_first_of_rank(facts, record):
        replica.process, replica.host = record.data["process"], record.data["host"]


def _process_ended(facts: RunFacts, record: Record) -> None:
    replica = _replica(facts, record)
    replica.is_certainly_over |= not record.data.get("is_doubtful", False)
    if _is_first_of_rank(facts, record):
        replica.end = End.from_data(record.data["end"])


def _attempt_ended(facts: RunFacts, record: Record) -> None:
    end = End.from_data(record.data["end"])
    _end_attempt(_attempt(facts, record), end, record.data["epoch"], record)


def _end_attempt(attempt: Attempt, end: End, epoch: int, record: Record) -> None:
    """Store an attempt's end under its leader's epoch; of several, the first one counts."""
    epoch = max(epoch, -1)
    precedence = (-record.seq if epoch >= 0 else 0, -record.at, record.writer, -record.seq)
    if epoch not in attempt.ends or precedence > attempt.ends[epoch][0]:
        attempt.ends[epoch] = (precedence, end, record.at)


def _task_ended(facts: RunFacts, record: Record) -> None:
    data = record.data
    ends = facts.task(data["task"]).ends
    end = (State(data["verdict"]), data["cause"], data["message"], record.at)
    known = ends.get(data["job"])
    ends[data["job"]] = end if known is None else min(known, end, key=_end_order)


def _end_order(end: tuple[State, str, str, float]) -> tuple[bool, float, str, str, str]:
    """Return the sort key of an end: success first, then the earliest; the other fields break ties."""
    return (end[0] is not State.SUCCEEDED, end[3], str(end[0]), end[1], end[2])


def _checkpoint(facts: RunFacts, record: Record) -> None:
    task, attempt = facts.task(record.data["task"]), _attempt(facts, record)
    step = record.data["step"]
    task.has_reported = True
    attempt.checkpoint_step = max(attempt.checkpoint_step, step)
    attempt.num_checkpoints += 1
    attempt.save_s = max(attempt.save_s, float(record.data.get("phase_s") or 0.0))
    task.best_step = max(task.best_step, step)
    task.last_checkpoint = max(task.last_checkpoint, SavedCheckpoint(step, record.data["path"]))
    _publish(task, record, step)


def _progress_entry(facts: RunFacts, record: Record) -> None:
    task = facts.task(record.data["task"])
    task.has_reported = True
    path, attempt = record.data["path"], _attempt(facts, record)
    task.entries.add(path)
    attempt.num_entries += 1
    attempt.last_entry = max(attempt.last_entry, SavedCheckpoint(step_in_name(path), path))
    _publish(task, record, step_in_name(path))


def _publish(task: TaskFacts, record: Record, step: int) -> None:
    path = record.data["path"]
    task.published[path] = min(task.published.get(path, (record.at, step)), (record.at, step))


def _evaluation_skipped(facts: RunFacts, record: Record) -> None:
    skipped, path = facts.task(record.data["task"]).skipped, record.data["path"]
    skipped[path] = min(skipped.get(path, (record.at, record.data["reason"])), (record.at, record.data["reason"]))


def _cooperates(facts: RunFacts, record: Record) -> None:
    _attempt(facts, record).is_listening = True


def _progress(facts: RunFacts, record: Record) -> None:
    task = facts.task(record.data["task"])
    data = record.data
    task.phase = max(task.phase, (record.at, data["phase"], data["step"]))
    what, since = data.get("waits_for", ""), data.get("since", 0.0)
    is_whole = isinstance(what, str) and isinstance(since, (int, float))
    task.waits = max(task.waits, (record.at, what, float(since)) if is_whole else (record.at, "", 0.0))
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
    events.JOB_GONE: _job_gone,
    events.STOP_REQUESTED: _stop_requested,
    events.TASK_QUEUED: _task_queued,
    events.LINK_QUEUED: _link_queued,
    events.LINK_STARTED: _link_started,
    events.NODE_AVOIDED: _node_avoided,
    events.ATTEMPT_STARTED: _attempt_started,
    events.PROCESS_STARTING: _process_starting,
    events.PROCESS_STARTED: _process_started,
    events.PROCESS_ENDED: _process_ended,
    events.ATTEMPT_ENDED: _attempt_ended,
    events.TASK_ENDED: _task_ended,
    events.CHECKPOINT: _checkpoint,
    events.PROGRESS_ENTRY: _progress_entry,
    events.EVALUATION_SKIPPED: _evaluation_skipped,
    events.COOPERATES: _cooperates,
    events.PROGRESS: _progress,
    events.FINISH: _finish,
    events.OUTPUTS: _outputs,
    events.NOTE: _note,
}
