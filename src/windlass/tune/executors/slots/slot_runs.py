"""The runs behind a sweep's slots: launched together, found again by their ids, and how their workers ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from windlass.core.errors import UnreachableError, UsageError
from windlass.launch import Run
from windlass.launch.start import start_runs
from windlass.record.causes import Kind, cause_of, kind_of
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome
from windlass.tune.executors.runs.trial_template import TrialTemplate
from windlass.tune.executors.slots.files import SLOT_VARIABLE, SWEEP_VARIABLE, SlotFiles
from windlass.tune.executors.slots.slot import RunSlot

__all__ = ["MAX_LIVES", "SlotRuns", "end_with", "last_words"]

MAX_LIVES = 5
"""Runs that a slot may have, one after another, before it is given up."""


class SlotRuns:
    """Makes and finds the runs of slots.

    Raises:
        UsageError: the experiment cannot be a slot: it has several tasks, or wants several nodes.
    """

    def __init__(self, blueprint: TrialTemplate, places: SlotFiles, home: Home, log: Callable[[str], None]) -> None:
        self._blueprint, self._places, self._home, self._log = blueprint, places, home, log
        self._task = _task_of(blueprint)

    def newest(self, base: str, number: int = 0) -> str:
        """The name of the newest life of a slot that was launched already, or the one of that number: `003`, `003-1`."""
        names = [base if life == 0 else f"{base}-{life}" for life in range(MAX_LIVES)]
        launched = [name for name in names[number:] if self._run(name) is not None]
        return launched[-1] if launched else names[number]

    def next_life(self, slot: RunSlot) -> str:
        """The name of the life after one whose run is over; empty where it had enough."""
        base, _, life = slot.name.partition("-")
        number = int(life or 0) + 1
        return self.newest(base, number) if slot.incarnation and number < MAX_LIVES else ""

    def launch(self, names: Sequence[str]) -> list[RunSlot]:
        """The slots of these names, launched where they are not yet, all together; blocks until their jobs are made."""
        fresh = [name for name in names if self._run(name) is None]
        if fresh:
            prepared = [
                self._blueprint.prepared(self._overrides(name), self._home, trial=f"slot {name}") for name in fresh
            ]
            start_runs(prepared, log=self._log, run_ids=[self._id(name) for name in fresh])
        found = []
        for name in names:
            run = self._run(name)
            assert run is not None  # it was just made
            with suppress(UnreachableError):
                run.reconcile()  # of a head that was killed while it launched
            found.append(RunSlot(name, run))
        return found

    def _overrides(self, name: str) -> tuple[str, ...]:
        task = f"tasks.{self._task}"
        return (
            f'{task}.vars.{SWEEP_VARIABLE}="{self._places.sweep}"',
            f'{task}.vars.{SLOT_VARIABLE}="{name}"',
            f"{task}.stall.enabled=false",
            f"{task}.grace=2s",
            "retry.failed=100000",
        )

    def _run(self, name: str) -> Run | None:
        folder = RunFolder(self._home.runs / self._id(name))
        return Run(folder, self._home) if (folder.path / "plan.json").exists() else None

    def _id(self, name: str) -> str:
        return self._blueprint.run_id(f"slot {name}", 0)


def end_with(slot: RunSlot, why: str) -> AttemptEnded:
    """How an attempt ended whose worker is gone: by its own fault where its code ended the process."""
    number = int(slot.incarnation.partition("-")[0])
    ends = [task.attempts[number].end for task in slot.run.facts.tasks.values() if number in task.attempts]
    end = next((end for end in ends if end is not None), None)
    if end is None or kind_of(cause_of(end.cause)) is not Kind.FAILURE:
        return AttemptEnded(trial=slot.trial, attempt=slot.attempt, how=AttemptOutcome.LOST, error=why)
    text = "\n".join([*end.tail, f"the process of the trial ended: {end.message or end.cause}"])
    return AttemptEnded(trial=slot.trial, attempt=slot.attempt, how=AttemptOutcome.FAILED, error=text, kind=end.cause)


def last_words(run: Run) -> str:
    """What a worker printed at its end."""
    for task in run.facts.tasks.values():
        newest = task.newest_attempt
        if newest is not None and newest.end is not None:
            return newest.end.traceback or "\n".join(newest.end.tail) or newest.end.message
    return ""


def _task_of(blueprint: TrialTemplate) -> str:
    tasks = blueprint.plan.tasks
    if len(tasks) == 1 and tasks[0].nodes == 1:
        return tasks[0].name
    has = f"{len(tasks)} tasks" if len(tasks) != 1 else f"a task on {tasks[0].nodes} nodes"
    raise UsageError(
        f"a slot is one task on one node, and {blueprint.plan.name} has {has}",
        hint="leave `trainable` out: each trial is then a run of its own",
        code="sweep-slots",
    )
