"""Facts about a task: its jobs, links, attempts and replicas, and the state derived from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from typing import Any, NamedTuple

from windlass.core.dataclass import dataclass
from windlass.record.lifecycle import State

__all__ = [
    "Attempt",
    "End",
    "EvaluationRule",
    "JobFacts",
    "Link",
    "Replica",
    "SavedCheckpoint",
    "TaskFacts",
    "step_in_name",
]

_QUEUES = frozenset({"slurm", "beaker"})
"""Backends whose jobs may wait in a queue, and so may outlive the run that submitted them."""

_LAST_NUMBER = re.compile(r"(\d+)\D*\Z")


def step_in_name(path: str) -> int:
    """Return the last number in a checkpoint's name, such as 500 for `checkpoint-500`; -1 without a number."""
    number = _LAST_NUMBER.search(path.rpartition("/")[2])
    return int(number[1]) if number else -1


class SavedCheckpoint(NamedTuple):
    """Checkpoint of a task.

    Attributes:
        step: its step; -1 if unknown.
        path: its path; empty without a checkpoint.
    """

    step: int = -1
    path: str = ""


@dataclass(frozen=True)
class EvaluationRule:
    """Rule of a task that evaluates checkpoints of another task: which ones, and how many may wait.

    Attributes:
        of: the task that publishes the checkpoints.
        every: evaluate every Nth checkpoint; 0 for none.
        last: evaluate the last one once `of` has succeeded.
        best: evaluate the one with the best value of this metric once `of` has succeeded; empty for none.
        mode: `min` or `max`.
        max_waiting: if more wait, the oldest are skipped.
    """

    of: str = ""
    every: int = 0
    last: bool = False
    best: str = ""
    mode: str = "min"
    max_waiting: int = 8

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> EvaluationRule:
        """Decode the JSON form; unknown keys from later versions are ignored."""
        return cls(**{key: data[key] for key in cls.__dataclass_fields__ if key in data})


@dataclass(frozen=True)
class End:
    """End of a process, a replica or an attempt.

    Attributes:
        code: exit code; a negative one is the number of the signal that ended it.
        rank: the replica that ended first and so is the cause; -1 if there is none.
        message: one line for the user.
        tail: the last lines printed, redacted.
        traceback: the Python traceback found in the log, redacted.
        needs_new_job: whether a replica is gone that cannot be restarted within this start of the scheduler's job.
    """

    cause: str
    code: int = 0
    rank: int = -1
    host: str = ""
    message: str = ""
    tail: tuple[str, ...] = ()
    traceback: str = ""
    at: float = 0.0
    needs_new_job: bool = False

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form, without defaults."""
        defaults = {item.name: item.default for item in fields(self)}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> End:
        """Decode `to_data`; unknown keys from later versions are ignored."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known["tail"] = tuple(known.get("tail", ()))
        return cls(**known)


@dataclass
class Replica:
    """Facts about one replica in an attempt.

    Attributes:
        is_certainly_over: a record of its process's end says that nothing of it is left; a client that cannot reach the
            machine only records that its job is gone.
    """

    host: str = ""
    process: str = ""
    is_starting: bool = False
    incarnation: str = ""
    end: End | None = None
    is_certainly_over: bool = False


@dataclass
class Attempt:
    """Facts about one execution of a task's gang.

    Attributes:
        evaluates: the checkpoint that it evaluates; empty for other tasks.
        evaluated_digest: digest of that checkpoint's manifest when the attempt started; empty without a manifest.
    """

    number: int
    job: int = 0
    link: int = 1
    incarnation: str = ""
    started_at: float = 0.0
    first_seen_at: float = 0.0
    last_seen_at: float = 0.0
    address: str = ""
    port: int = 0
    replicas: dict[int, Replica] = field(default_factory=dict)
    start_rank: tuple[int, float, str, int] = (-1, 0.0, "", 0)
    ends: dict[int, tuple[tuple[int, float, str, int], End, float]] = field(default_factory=dict)
    checkpoint_step: int = -1
    num_checkpoints: int = 0
    num_entries: int = 0
    last_entry: SavedCheckpoint = SavedCheckpoint()
    save_s: float = 0.0
    is_listening: bool = False
    evaluates: SavedCheckpoint = SavedCheckpoint()
    evaluated_digest: str = ""

    @property
    def _last_word(self) -> tuple[int, tuple[tuple[int, float, str, int], End, float]] | None:
        """Return the end that counts: the newest leader's, unless an even later leader started the attempt.

        A client's record (epoch -1) counts only if no supervisor recorded an end.
        """
        epoch = max((epoch for epoch in self.ends if epoch >= max(0, self.start_rank[0])), default=-1)
        return (epoch, self.ends[epoch]) if epoch in self.ends else None

    @property
    def end(self) -> End | None:
        """Return how the attempt ended; None while it runs."""
        word = self._last_word
        return word[1][1] if word is not None else None

    @property
    def ended_at(self) -> float:
        """Return the time at which the attempt's end was recorded; 0 while it runs."""
        word = self._last_word
        return word[1][2] if word is not None else 0.0

    @property
    def has_progress(self) -> bool:
        """Return whether the attempt committed a checkpoint or completed a new checkpoint file."""
        return self.num_checkpoints + self.num_entries > 0

    @property
    def running_s(self) -> float:
        """Return how long an ended attempt ran; if it was lost, until its last record."""
        if not self.started_at or self.end is None:
            return 0.0
        ended_at = self.last_seen_at if self.is_end_doubtful else self.end.at or self.ended_at
        return max(0.0, ended_at - self.started_at)

    @property
    def is_end_doubtful(self) -> bool:
        """Return whether only a client recorded the attempt's end; a supervisor's record would override that."""
        word = self._last_word
        return word is None or word[0] < 0

    @property
    def has_started(self) -> bool:
        """Return whether user code may have run in this attempt."""
        return self.started_at > 0 or any(replica.is_starting for replica in self.replicas.values())


@dataclass
class Link:
    """Facts about one of the scheduler's jobs; a windlass job may be a chain of them."""

    number: int
    backend_id: str = ""
    incarnation: str = ""
    started_at: float = 0.0
    host: str = ""


@dataclass
class JobFacts:
    """Facts about one submission of a task to a backend.

    Attributes:
        is_gone: whether a client has found that nothing of it is left at its site.
    """

    number: int
    token: str = ""
    backend: str = ""
    resets_budgets: bool = False
    intended_at: float = 0.0
    backend_id: str = ""
    locator: str = ""
    is_submitted: bool = False
    is_held: bool = False
    is_gone: bool = False
    refusal: str = ""
    lost: str = ""
    reason: tuple[float, str] = (0.0, "")
    links: dict[int, Link] = field(default_factory=dict)


@dataclass
class TaskFacts:
    """Facts about a task, as recorded in the journal.

    Attributes:
        evaluates: rule of a task that evaluates checkpoints of another one.
        published: time of the first record and step of each checkpoint and entry, by path.
        phase: time, phase and step of the newest progress.
        waits: time of that progress, what its code waits for (empty: nothing), and since when.
        skipped: time and reason of checkpoints that this task does not evaluate although its rule selects them, by path.
    """

    name: str
    after: tuple[str, ...] = ()
    num_replicas: int = 1
    jobs: dict[int, JobFacts] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    ends: dict[int, tuple[State, str, str, float]] = field(default_factory=dict)
    stopped_job: int = 0
    stopped_at: float = 0.0
    is_checkpoint_wanted: bool = False
    stop_reason: str = ""
    best_step: int = -1
    has_reported: bool = False
    last_checkpoint: SavedCheckpoint = SavedCheckpoint()
    phase: tuple[float, str, int] = (0.0, "", -1)
    waits: tuple[float, str, float] = (0.0, "", 0.0)
    entries: set[str] = field(default_factory=set)
    avoided: dict[str, str] = field(default_factory=dict)
    evaluates: EvaluationRule | None = None
    published: dict[str, tuple[float, int]] = field(default_factory=dict)
    skipped: dict[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def newest_checkpoint(self) -> SavedCheckpoint:
        """Return the newest committed checkpoint, or else the newest entry that matches the pattern.

        The path of an entry is relative to the task's checkpoint folder.
        """
        if self.last_checkpoint.path:
            return self.last_checkpoint
        return max((attempt.last_entry for attempt in self.attempts.values()), default=SavedCheckpoint())

    @property
    def newest_job(self) -> int:
        """Return the number of the newest submission; 0 before the first."""
        return max(self.jobs, default=0)

    def num_links_begun(self, before_job: int) -> int:
        """Return how many links of earlier jobs began since the budgets were last reset."""
        reset = max((job.number for job in self.jobs.values() if job.resets_budgets), default=0)
        jobs = [job for job in self.jobs.values() if reset <= job.number < before_job]
        return sum(1 for job in jobs for link in job.links.values() if link.started_at)

    @property
    def newest_attempt(self) -> Attempt | None:
        """Return the attempt with the highest number."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """Return the number of the next attempt; the first is 1."""
        return 1 + max(self.attempts, default=0)

    @property
    def is_between(self) -> bool:
        """Return whether the task is unfinished but not running; its job or next link may be queued."""
        newest = self.newest_attempt
        return self.end is None and (newest is None or newest.end is not None)

    @property
    def jobs_left(self) -> tuple[int, ...]:
        """Return the jobs that may still be queued although the task has ended."""
        if self.end is None:
            return ()
        jobs = (self.jobs[number] for number in sorted(self.jobs))
        return tuple(job.number for job in jobs if job.is_submitted and not job.is_gone and job.backend in _QUEUES)

    @property
    def end(self) -> tuple[State, str, str, float] | None:
        """Return the (verdict, cause, message, time) of the task's end; None if it has not ended or was resumed since.

        A success is final, whatever is recorded later; a newer job undoes any other end.
        """
        for job in sorted(self.ends):
            if self.ends[job][0] is State.SUCCEEDED:
                return self.ends[job]
        return self.ends.get(max(self.newest_job, *self.ends)) if self.ends else None

    @property
    def is_stop_wanted(self) -> bool:
        """Return whether a requested stop covers the newest job.

        It also covers jobs that only continue the stopped one (a client may create the next job at the moment of the
        stop), but not jobs that a user requested after the task's end.
        """
        covered = self.stopped_job
        while covered and covered + 1 in self.jobs and covered not in self.ends:
            covered += 1
        return 0 < self.newest_job <= covered

    @property
    def state(self) -> State:
        """Return the task's state, derived from the facts."""
        end = self.end
        if end is not None:
            return end[0]
        if not self.jobs:
            return State.PLANNED
        if self.is_stop_wanted:
            return State.STOPPING
        newest = self.newest_attempt
        if newest is not None and newest.job == self.newest_job and newest.has_started:
            is_idle = self.evaluates is not None and newest.end is not None  # it waits for the next checkpoint
            return State.QUEUED if is_idle else State.RUNNING
        return State.QUEUED

    @property
    def reason(self) -> str:
        """Return why the task waits; empty if it does not."""
        if self.state is not State.QUEUED:
            return ""
        return self.jobs[self.newest_job].reason[1]
