"""State of a running sweep: trials, attempts that hold slots, awaited checkpoints, and usage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windlass.tune.controller.checkpoint_retention import CheckpointRetention
from windlass.tune.controller.journal import records
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.controller.table import TrialTable
from windlass.tune.executors.protocol import Go, Halt, StartAttempt
from windlass.tune.trial import Resources, SavedState, Trial, TrialStatus

__all__ = ["AwaitedSave", "Command", "Drop", "OpenAttempt", "SweepState", "UsageMeter"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Command to delete a checkpoint."""

    path: str


Command = StartAttempt | Go | Halt | Drop
_HOW_TO_SAVE = "pass checkpoint= to tune.report"


@dataclass(slots=True)
class OpenAttempt:
    """Attempt that has not ended yet.

    Attributes:
        upto: the last iteration that it may report.
        is_old: whether the trial's configuration has changed since; messages of this attempt are dropped.
        is_halted: whether it was ordered to end.
        wants_save: whether the next answer asks for a checkpoint.
        resources: the resources that it holds from start to end, even if its trial's resources change.
        has_started: whether its worker reported the start.
        is_leaving: whether its machine is about to be taken away; its end is no failure or interruption of the trial.
        saved_at: the newest iteration that it saved; a replayed spool repeats older ones.
    """

    attempt: int
    upto: int
    resources: Resources
    is_old: bool = False
    is_halted: bool = False
    wants_save: bool = False
    has_started: bool = False
    is_leaving: bool = False
    saved_at: int = -1


@dataclass(slots=True)
class AwaitedSave:
    """Checkpoint that has been requested from a running attempt.

    Attributes:
        upto: the last iteration that it was allowed to report before; a later report shows that it cannot save.
        waiters: trials that will restore from the checkpoint.
    """

    iteration: int
    upto: int
    waiters: list[str] = field(default_factory=list)


class SweepState:
    """Mutable state of the core, changed only by the core and, through it, by schedulers.

    Attributes:
        lines: records of this event, (kind, data); removed by the caller of the core.
        commands: commands for the executor, in order; removed likewise.
        acts: acts of the current event on trials.
        is_closing: this head starts nothing more.
        notes: warnings for the user; removed by the view.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self.settings = settings
        self.table = TrialTable()
        self.open_attempts: dict[str, OpenAttempt] = {}
        self.awaited_saves: dict[str, AwaitedSave] = {}
        self.retention = CheckpointRetention(settings.keep)
        self.usage = UsageMeter()
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.commands: list[Command] = []
        self.acts: list[dict[str, Any]] = []
        self.is_closing = False
        self.notes: list[str] = []
        self._warned: set[str] = set()

    def halt(self, trial: Trial, *, saves: bool) -> None:
        """End a trial's attempt, if it has one; an attempt whose checkpoint is awaited always saves first."""
        open_attempt = self.open_attempts.get(trial.id)
        if open_attempt is None:
            return
        saves = saves or trial.id in self.awaited_saves
        if saves:
            self.ask(trial, open_attempt)
        open_attempt.is_halted = True
        open_attempt.wants_save = False
        self.commands.append(Halt(trial=trial.id, attempt=open_attempt.attempt, saves=saves))

    def pause(self, trial: Trial, why: str, *, saves: bool = True) -> None:
        """Pause a running trial.

        It resumes from its current state if it can save, otherwise from its last start.
        """
        saves = saves and self.saved_now(trial) is None
        self.table.move(trial, TrialStatus.PAUSED, why)
        self.halt(trial, saves=saves)
        if saves:
            self.restore_later(trial, trial.id)

    def saved_now(self, trial: Trial) -> SavedState | None:
        """Return the checkpoint at exactly the trial's current iteration, if its attempt has saved one."""
        open_attempt, found = self.open_attempts.get(trial.id), trial.restore_from
        is_here = found is not None and found.path and found.iteration == trial.iteration
        return found if is_here and open_attempt is not None and open_attempt.saved_at == trial.iteration else None

    def reported(self, trial: Trial, open_attempt: OpenAttempt) -> None:
        """Count a report without a checkpoint.

        A checkpoint that was saved before its report can now be scored and loaded.
        """
        self.retention.learn(trial.id, trial.iteration, trial.last or {})
        newest = trial.checkpoint
        if (
            newest is not None
            and open_attempt.saved_at == newest.iteration == trial.iteration
            and newest != trial.restore_from
        ):
            self.set_restore(trial, newest)

    def ask(self, trial: Trial, open_attempt: OpenAttempt) -> AwaitedSave:
        """Request a checkpoint at the trial's current iteration, or return the request that is already pending."""
        ask = self.awaited_saves.get(trial.id)
        if ask is None or ask.iteration != trial.iteration:
            waiters = ask.waiters if ask is not None else []
            ask = self.awaited_saves[trial.id] = AwaitedSave(trial.iteration, open_attempt.upto, waiters)
        return ask

    def set_restore(self, trial: Trial, saved: SavedState | None) -> None:
        """Set the checkpoint that the trial's next start will load."""
        before, trial.restore_from = trial.restore_from, saved
        self.retention.hold(saved)
        self.drop(self.retention.release(before))

    def restore_later(self, trial: Trial, source: str) -> None:
        """Make the next start of a trial load a checkpoint that is still awaited."""
        ask = self.awaited_saves[source]
        ask.waiters.append(trial.id)
        self.set_restore(trial, SavedState(trial=source, iteration=ask.iteration))

    def drop(self, surplus: Any) -> None:
        """Delete checkpoints that are no longer needed."""
        for saved in surplus:
            self.lines.append((records.CHECKPOINT_DROPPED, {"trial": saved.trial, "path": saved.path}))
            self.commands.append(Drop(saved.path))
            if not self.retention.has_scores(saved.trial):
                name = self.settings.keep.score_attribute
                text = f"no checkpoint of trial {saved.trial} has a numeric `{name}`: the newest are kept, not the best"
                self._warn("score", text)

    def commit(self, trial: Trial, saved: SavedState) -> None:
        """Commit a checkpoint, which the trial's next start and trials waiting for it will load."""
        metrics = trial.last if saved.iteration == trial.iteration else None
        open_attempt = self.open_attempts.get(trial.id)
        if open_attempt is not None:
            open_attempt.saved_at = saved.iteration
        is_own = open_attempt is not None and not open_attempt.is_old
        if is_own:
            trial.checkpoint = saved
        self.drop(self.retention.add(saved, metrics))
        if is_own and not trial.status.is_over and saved.iteration <= trial.iteration:
            self.set_restore(
                trial, saved
            )  # a checkpoint ahead of its report waits for it; otherwise a lost worker would skip the report
        self.answer(trial.id, saved)

    def answer(self, source: str, saved: SavedState | None) -> None:
        """Deliver an awaited checkpoint to the trials that wait for it.

        `saved=None` means that it will not arrive: they use the newest one instead.
        """
        ask = self.awaited_saves.pop(source, None)
        if ask is None:
            return
        found = saved or self.retention.find(SavedState(trial=source, iteration=ask.iteration))
        for name in ask.waiters:
            trial = self.table.trials[name]
            waits_for = trial.restore_from
            if waits_for is None or waits_for.path or waits_for.trial != source or trial.status.is_over:
                continue
            if name == source:
                self.set_restore(trial, found)
            else:
                self.clone(trial, found, of=source)

    def clone(self, trial: Trial, source: SavedState | None, *, of: str) -> None:
        """Continue a trial from another trial's checkpoint.

        Without one, it continues from its own checkpoint or from the start, with a warning.
        """
        if source is None:
            trial.why = f"trial {of} never saved a checkpoint, so no trial can continue from it: {_HOW_TO_SAVE}"
            self._warn("source", trial.why)
        found = source or trial.checkpoint
        self.set_restore(trial, found)
        trial.iteration = found.iteration if found is not None else 0

    def _warn(self, kind: str, text: str) -> None:
        """Warn once per head, because the same problem usually affects every trial."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.notes.append(text)

    def begin(self, open_attempt: OpenAttempt) -> None:
        """Start counting the resources of an attempt; the time it spent in a queue is not counted."""
        open_attempt.has_started = True
        self.usage.take(open_attempt.resources, self.settings, 1)

    def free(self, trial: Trial, open_attempt: OpenAttempt) -> None:
        """Close an attempt."""
        del self.open_attempts[trial.id]
        if open_attempt.has_started:
            self.usage.take(open_attempt.resources, self.settings, -1)
        self.answer(trial.id, None)
        if trial.restore_from is not None and not trial.restore_from.path and trial.restore_from.trial == trial.id:
            self.set_restore(trial, trial.checkpoint)

    def end(self, trial: Trial, status: TrialStatus, why: str) -> None:
        """End a trial."""
        self.table.move(trial, status, why)
        before, trial.restore_from = trial.restore_from, None
        self.drop(self.retention.release(before))

    def fresh_attempt(self, trial: Trial, credit: int) -> StartAttempt:
        """Create the next attempt of a trial."""
        trial.attempt += 1
        self.table.move(trial, TrialStatus.RUNNING)
        source = trial.restore_from
        begins_at = source.iteration if source is not None else 0
        credit += max(0, trial.iteration - begins_at)  # repeated reports need no answer
        self.open_attempts[trial.id] = OpenAttempt(
            trial.attempt, begins_at + credit, trial.resources, saved_at=begins_at
        )
        seconds = self.retention.seconds_at(source) if source is not None else 0.0
        return StartAttempt(
            trial=trial.id,
            attempt=trial.attempt,
            config=trial.config,
            resources=trial.resources,
            restore_from=source.path if source is not None else "",
            iteration=begins_at,
            time_total_s=seconds,
            credit=credit,
        )


_HOUR_S = 3600.0


class UsageMeter:
    """Meter of resource usage.

    It uses the times of records, so that a restored sweep gives the same values.

    The time between two heads is not counted.

    Attributes:
        at: wall time up to which usage is counted; an earlier tick changes nothing.
    """

    __slots__ = ("_cost", "_cost_rate", "_gpu_rate", "_gpu_s", "_seconds", "at")

    def __init__(self) -> None:
        self.at = 0.0
        self._seconds = self._gpu_s = self._cost = 0.0
        self._gpu_rate = self._cost_rate = 0.0

    @property
    def seconds(self) -> float:
        """Seconds for which heads have run, up to `at`."""
        return self._seconds

    def open(self, at: float) -> None:
        """Start counting for a new head."""
        self.at = at

    def tick(self, at: float) -> None:
        """Count the time up to `at`."""
        passed = at - self.at
        if passed > 0.0:
            self.at = at
            self._seconds += passed
            self._gpu_s += passed * self._gpu_rate
            self._cost += passed * self._cost_rate

    def take(self, resources: Resources, settings: SweepSettings, sign: int) -> None:
        """Add (1) or remove (-1) the resources of an attempt, from now on."""
        if settings.gpu_hours or settings.max_cost:
            total = resources.total
            self._gpu_rate += sign * total.get("GPU", 0.0)
            self._cost_rate += sign * sum(total.get(name, 0.0) * price for name, price in settings.prices.items())

    def exceeded(self, settings: SweepSettings, now: float) -> str:
        """Return a sentence that names the limit reached at `now`, or an empty string if none is reached."""
        passed = max(0.0, now - self.at)
        if settings.time_budget_s and self._seconds + passed >= settings.time_budget_s:
            return f"the time budget of {settings.time_budget_s:g} s is used up"
        if settings.gpu_hours and (self._gpu_s + passed * self._gpu_rate) / _HOUR_S >= settings.gpu_hours:
            return f"{settings.gpu_hours:g} GPU-hours are used up"
        if settings.max_cost and (self._cost + passed * self._cost_rate) / _HOUR_S >= settings.max_cost:
            return f"the sweep has cost {settings.max_cost:g}"
        return ""
