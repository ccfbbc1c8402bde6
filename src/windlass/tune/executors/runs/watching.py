"""Following of a run that is an attempt of a trial: its records become reports, checkpoints and the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.launcher.remote.refresh import MirrorRefresh
from windlass.launcher.run import Run
from windlass.record import events
from windlass.record.causes import Kind, cause_of, kind_of
from windlass.record.frames import Record
from windlass.record.journal import JournalReader
from windlass.record.state import RunFacts, State
from windlass.runs.home import Home
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    StartAttempt,
)
from windlass.tune.trial import Metrics

__all__ = ["ASKED", "Watch"]

ASKED = "requested by its sweep"
"""Reason of a stop that the controller requested."""

_PATIENCE = 100
"""Steps after which a report without the sweep's metric is passed on, so that it causes an error."""
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit))(?::|$)", re.MULTILINE)
_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class Watch:
    """Reader that turns the journal of one attempt's run into events.

    Metrics from several calls are merged, and a report is sent when it has the sweep's metrics, so code may log more
    often than it evaluates. The step is the `training_iteration`; step 0 precedes the first iteration and is ignored;
    reports without a step are counted. Reports that a restarted run repeats are skipped.

    Args:
        start: start order of the attempt.
        metrics: names of the sweep's metrics.
    """

    def __init__(self, start: StartAttempt, run: Run, home: Home, metrics: tuple[str, ...]) -> None:
        self.start = start
        self.run = run
        self.checkpoint: AttemptSaved | None = None
        self.is_halting = False
        self._listening = MirrorRefresh(run.folder, home)
        self._reader = JournalReader(run.folder.journal)
        self._facts = RunFacts()
        self._wanted = frozenset(metrics)
        self._values: Metrics = {}
        self._step = -1
        self._num_steps = 0
        self._has_reported = False
        self._iteration = start.iteration
        self._rank = 1 << 30
        self._has_started = False

    @property
    def waits_for(self) -> str:
        """Return why the run is waiting; empty if it is not, or if the reason is unknown."""
        return next((task.reason for task in self._facts.tasks.values() if task.reason), "")

    def poll(self) -> list[Event]:
        """Return the events since the last call, of which the last may be the end of the attempt."""
        self._listening.look()
        found = list(self._take_in(self._reader.poll()))
        if not self._is_over():
            return found
        self._listening.look(is_last=True)
        found += self._take_in(self._reader.poll(is_fresh=True))
        if not self._is_over():  # a user resumed it
            return found
        return [*found, *(() if self._has_reported else self._flush()), self._end()]

    def _is_over(self) -> bool:
        return self._facts.state.is_terminal

    def _take_in(self, records: list[Record]) -> Iterator[Event]:
        for record in records:  # first, because reports must be read before the file with the start of the attempt
            if record.kind != events.METRICS:
                self._facts.apply(record)
        for record in records:
            if record.kind == events.METRICS:
                yield from self._begin()
                yield from self._metrics(record.data, record.at)
            elif record.kind == events.PROCESS_STARTED:
                yield from self._begin()
            elif record.kind == events.CHECKPOINT:
                yield from self._begin()
                yield self._saved(record.data)

    def _begin(self) -> Iterator[Event]:
        if self._has_started:
            return
        self._has_started = True
        replicas = [
            replica
            for task in self._facts.tasks.values()
            for attempt in task.attempts.values()
            for replica in attempt.replicas.values()
            if replica.process
        ]
        host = replicas[0].host if replicas else ""
        pid = int(replicas[0].process.partition(":")[0]) if replicas else 0
        yield AttemptStarted(trial=self.start.trial, attempt=self.start.attempt, slot=self.run.id, host=host, pid=pid)

    # --- reports

    def _metrics(self, data: Mapping[str, Any], at: float) -> Iterator[Event]:
        if data["rank"] > self._rank:
            return
        self._rank, step = data["rank"], data["step"]
        if step >= 0 and step != self._step:
            self._num_steps += 1
            if self._num_steps > _PATIENCE and not self._has_reported:
                yield from self._flush()
            self._step = step
        self._values.update({name: _NUMBERS.get(value, value) for name, value in data["values"].items()})
        self._values["timestamp"] = at
        if self._wanted <= self._values.keys():
            yield from self._flush()

    def _flush(self) -> Iterator[Event]:
        """Yield the merged report, unless it repeats an earlier one."""
        values, self._values = self._values, {}
        iteration = self._step if self._step >= 0 else self._iteration + 1
        if not values or iteration <= self._iteration:
            return
        self._iteration, self._has_reported = iteration, True
        values["training_iteration"] = iteration
        values["time_total_s"] = round(self.start.time_total_s + self._ran_s(values["timestamp"]), 3)
        yield AttemptReported(trial=self.start.trial, attempt=self.start.attempt, metrics=values)

    def _ran_s(self, now: float) -> float:
        """Return how long the run's attempts have run in total, without their time in queues."""
        attempts = [attempt for task in self._facts.tasks.values() for attempt in task.attempts.values()]
        passed = [(attempt, max(0.0, now - attempt.started_at)) for attempt in attempts if attempt.started_at]
        return sum(seconds if attempt.end is None else min(seconds, attempt.running_s) for attempt, seconds in passed)

    def _saved(self, data: Mapping[str, Any]) -> Event:
        iteration = data["step"] if data["step"] > 0 else self._iteration
        self.checkpoint = AttemptSaved(
            trial=self.start.trial, attempt=self.start.attempt, iteration=iteration, path=data["path"]
        )
        return self.checkpoint

    # --- the end

    def _end(self) -> AttemptEnded:
        facts, state = self._facts, self._facts.state
        if state is State.SUCCEEDED:
            return self._ended(AttemptOutcome.DONE)
        if self.is_halting or any(task.stop_reason == ASKED for task in facts.tasks.values()):
            return self._ended(AttemptOutcome.HALTED)
        kind = kind_of(cause_of(facts.cause))
        if kind is Kind.INTERRUPTION or self._never_ran():
            return self._ended(AttemptOutcome.LOST, self._error())
        error = self._error()
        return self._ended(AttemptOutcome.FAILED, error, _exception_in(error) or facts.cause)

    def _never_ran(self) -> bool:
        """Return whether the launch died before it was complete, in which case the trial itself did not fail."""
        return not any(task.jobs for task in self._facts.tasks.values())

    def _ended(self, how: AttemptOutcome, error: str = "", kind: str = "") -> AttemptEnded:
        return AttemptEnded(trial=self.start.trial, attempt=self.start.attempt, how=how, error=error, kind=kind)

    def _error(self) -> str:
        """Return the trial's traceback or its last lines of output, followed by the run's state and cause."""
        ends = [task.newest_attempt.end for task in self._facts.tasks.values() if task.newest_attempt is not None]
        end = next((end for end in ends if end is not None and end.cause == self._facts.cause), None)
        texts = [end.traceback or "\n".join(end.tail)] if end is not None else []
        messages = [task.end[2] for task in self._facts.tasks.values() if task.end is not None and task.end[2]]
        last = f"run {self.run.id} {self._facts.state}: {self._facts.cause}" + (f", {messages[0]}" if messages else "")
        return "\n".join([*(text for text in texts if text), last])


def _exception_in(text: str) -> str:
    """Return the name of the exception at the end of the last traceback in a string; empty if there is none."""
    found = _EXCEPTION.findall(text)
    return found[-1] if found else ""
