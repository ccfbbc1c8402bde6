"""Slots and their runs: how they are launched together and found by their ids, and how their workers ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from windlass.core.clock import Clock
from windlass.core.errors import UnreachableError, UsageError
from windlass.launcher.run import Run
from windlass.launcher.start import start_runs
from windlass.record.causes import Kind, cause_of, kind_of
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.tune.executors.channel import Message
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome
from windlass.tune.executors.runs.trial_template import TrialTemplate
from windlass.tune.executors.slots.files import ORDER, SLOT_VARIABLE, SWEEP_VARIABLE, SlotFiles

__all__ = ["MAX_LIVES", "RunSlot", "SlotRuns", "end_with", "last_words"]


@dataclass(slots=True)
class RunSlot:
    """Slot as its head sees it.

    Attributes:
        incarnation: the current incarnation of the worker; empty before the first.
        trial, attempt: its assignment that has not ended.
        last_message_at: time of its last message, on this process's monotonic clock.
        is_gone: its run is over, or it was silent for too long.
        stale: its attempt was declared lost while it was silent, and the worker has not been notified.
    """

    name: str
    run: Run
    incarnation: str = ""
    host: str = ""
    pid: int = 0
    trial: str = ""
    attempt: int = 0
    last_message_at: float = 0.0
    is_gone: bool = False
    stale: bool = False
    _writer: JournalWriter | None = field(default=None, repr=False)

    @property
    def is_idle(self) -> bool:
        """Return whether the slot can take a trial."""
        return bool(self.incarnation) and not self.trial and not self.is_gone

    def tell(self, message: Message, files: SlotFiles, head: str, clock: Clock) -> None:
        """Write an order for the current incarnation; it is on disk on return."""
        if self._writer is None:
            self._writer = JournalWriter(files.orders(self.name), head, clock)
        self._writer.append(ORDER, to=self.incarnation, message=message)

    def release(self) -> None:
        """Release the slot after its attempt."""
        self.trial, self.attempt = "", 0

    def leave(self, *, is_silent: bool) -> None:
        """Mark the slot as lost, either permanently or until its next message."""
        self.stale = is_silent and bool(self.trial)
        self.is_gone = True
        self.release()

    def close(self) -> None:
        """Close the file of orders."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


MAX_LIVES = 5
"""Maximum number of consecutive runs of a slot before it is abandoned."""


class SlotRuns:
    """Launcher of the runs behind slots, which also finds existing ones.

    Raises:
        UsageError: the experiment cannot be a slot, because it has several tasks or needs several nodes.
    """

    def __init__(self, template: TrialTemplate, files: SlotFiles, home: Home, log: Callable[[str], None]) -> None:
        self._template, self._files, self._home, self._log = template, files, home, log
        self._task = _task_of(template)

    def newest(self, base: str, number: int = 0) -> str:
        """Return the name of a slot's newest launched run, starting at this number: `003`, `003-1`."""
        names = [base if life == 0 else f"{base}-{life}" for life in range(MAX_LIVES)]
        launched = [name for name in names[number:] if self._run(name) is not None]
        return launched[-1] if launched else names[number]

    def next_life(self, slot: RunSlot) -> str:
        """Return the name of the run that follows one that has ended; empty if the slot has had too many."""
        base, _, life = slot.name.partition("-")
        number = int(life or 0) + 1
        return self.newest(base, number) if slot.incarnation and number < MAX_LIVES else ""

    def launch(self, names: Sequence[str]) -> list[RunSlot]:
        """Return the slots with these names, launching all missing ones. Blocks until their jobs are submitted."""
        fresh = [name for name in names if self._run(name) is None]
        if fresh:
            prepared = [
                self._template.prepared(self._overrides(name), self._home, trial=f"slot {name}") for name in fresh
            ]
            start_runs(prepared, log=self._log, run_ids=[self._id(name) for name in fresh])
        found = []
        for name in names:
            run = self._run(name)
            assert run is not None  # it was just created
            with suppress(UnreachableError):
                run.reconcile()  # from a head that was killed while it launched
            found.append(RunSlot(name, run))
        return found

    def _overrides(self, name: str) -> tuple[str, ...]:
        task = f"tasks.{self._task}"
        return (
            f'{task}.vars.{SWEEP_VARIABLE}="{self._files.sweep}"',
            f'{task}.vars.{SLOT_VARIABLE}="{name}"',
            f"{task}.stall.enabled=false",
            f"{task}.grace=2s",
            "retry.failed=100000",
        )

    def _run(self, name: str) -> Run | None:
        return self._template.find_run(f"slot {name}", 0, self._home)

    def _id(self, name: str) -> str:
        return self._template.run_id(f"slot {name}", 0)


def end_with(slot: RunSlot, why: str) -> AttemptEnded:
    """Return the end of an attempt whose worker is gone: FAILED if the trial's code ended the process, else LOST."""
    number = int(slot.incarnation.partition("-")[0])
    ends = [task.attempts[number].end for task in slot.run.facts.tasks.values() if number in task.attempts]
    end = next((end for end in ends if end is not None), None)
    if end is None or kind_of(cause_of(end.cause)) is not Kind.FAILURE:
        return AttemptEnded(trial=slot.trial, attempt=slot.attempt, how=AttemptOutcome.LOST, error=why)
    text = "\n".join([*end.tail, f"the process of the trial ended: {end.message or end.cause}"])
    return AttemptEnded(trial=slot.trial, attempt=slot.attempt, how=AttemptOutcome.FAILED, error=text, kind=end.cause)


def last_words(run: Run) -> str:
    """Return the last output of a worker."""
    for task in run.facts.tasks.values():
        newest = task.newest_attempt
        if newest is not None and newest.end is not None:
            return newest.end.traceback or "\n".join(newest.end.tail) or newest.end.message
    return ""


def _task_of(template: TrialTemplate) -> str:
    tasks = template.plan.tasks
    if len(tasks) == 1 and tasks[0].shape.nodes == 1:
        return tasks[0].name
    has = f"{len(tasks)} tasks" if len(tasks) != 1 else f"a task on {tasks[0].shape.nodes} nodes"
    raise UsageError(
        f"a slot is one task on one node, but {template.plan.name} has {has}",
        hint="remove `trainable`: each trial is then a separate run",
        code="sweep-unsupported",
    )
