"""The state of a sweep that is being run: trials, attempts that hold slots, and saves that are awaited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windlass.tune.controller.checkpoint_retention import CheckpointRetention
from windlass.tune.controller.journal import records
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.controller.table import TrialTable
from windlass.tune.controller.usage import UsageMeter
from windlass.tune.executors.protocol import Go, Halt, StartAttempt
from windlass.tune.trial import Resources, SavedState, Trial, TrialStatus

__all__ = ["AwaitedSave", "Command", "Drop", "OpenAttempt", "SweepState"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete a checkpoint."""

    path: str


Command = StartAttempt | Go | Halt | Drop
_HOW_TO_SAVE = "pass checkpoint= to tune.report"


@dataclass(slots=True)
class OpenAttempt:
    """An attempt that has not ended.

    Attributes:
        upto: the iteration up to which it may report.
        is_old: the trial has gone on to another configuration; what it still says is dropped.
        is_halted: it was told to end.
        wants_save: the next answer asks for a checkpoint.
        resources: what it holds from its start to its end, whatever its trial gets next.
        has_started: its worker said so.
        saved_at: the newest iteration that it saved; the spool of an attempt tells older ones again.
    """

    attempt: int
    upto: int
    resources: Resources
    is_old: bool = False
    is_halted: bool = False
    wants_save: bool = False
    has_started: bool = False
    saved_at: int = -1


@dataclass(slots=True)
class AwaitedSave:
    """A checkpoint that a running attempt was asked for.

    Attributes:
        upto: what it had been allowed to report before; a later report shows that it cannot save.
        waiters: trials that will restore from it.
    """

    iteration: int
    upto: int
    waiters: list[str] = field(default_factory=list)


class SweepState:
    """What the core knows and what it puts out; changed only by the core and by what a scheduler does through it.

    Attributes:
        lines: records that this event makes, (kind, data); whoever called the core takes them out.
        commands: what the executor is to be told, in order; taken out likewise.
        acts: what the event at hand did to trials.
        is_closing: nothing starts any more in this head.
        notes: what people should know at once; whoever shows them takes them out.
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
        """End the attempt that a trial holds, if any; one whose checkpoint is awaited saves in any case."""
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
        """Take a running trial off its slot; it will go on from where it is if it saves, else from its last start."""
        saves = saves and self.saved_now(trial) is None
        self.table.move(trial, TrialStatus.PAUSED, why)
        self.halt(trial, saves=saves)
        if saves:
            self.restore_later(trial, trial.id)

    def saved_now(self, trial: Trial) -> SavedState | None:
        """The checkpoint at exactly where a trial is, if its attempt has one."""
        open_attempt, found = self.open_attempts.get(trial.id), trial.restore_from
        is_here = found is not None and found.path and found.iteration == trial.iteration
        return found if is_here and open_attempt is not None and open_attempt.saved_at == trial.iteration else None

    def reported(self, trial: Trial, open_attempt: OpenAttempt) -> None:
        """A report without a checkpoint counted: one that came before it can be scored and loaded now."""
        self.retention.learn(trial.id, trial.iteration, trial.last or {})
        newest = trial.checkpoint
        if (
            newest is not None
            and open_attempt.saved_at == newest.iteration == trial.iteration
            and newest != trial.restore_from
        ):
            self.set_restore(trial, newest)

    def ask(self, trial: Trial, open_attempt: OpenAttempt) -> AwaitedSave:
        """Await a checkpoint of a running attempt at its trial's iteration, or the one awaited already."""
        ask = self.awaited_saves.get(trial.id)
        if ask is None or ask.iteration != trial.iteration:
            waiters = ask.waiters if ask is not None else []
            ask = self.awaited_saves[trial.id] = AwaitedSave(trial.iteration, open_attempt.upto, waiters)
        return ask

    def set_restore(self, trial: Trial, saved: SavedState | None) -> None:
        """What a trial's next start loads."""
        before, trial.restore_from = trial.restore_from, saved
        self.retention.hold(saved)
        self.drop(self.retention.release(before))

    def restore_later(self, trial: Trial, source: str) -> None:
        """A trial's next start loads the checkpoint that another (or it itself) is asked for."""
        ask = self.awaited_saves[source]
        ask.waiters.append(trial.id)
        self.set_restore(trial, SavedState(trial=source, iteration=ask.iteration))

    def drop(self, surplus: Any) -> None:
        """Checkpoints that nothing needs."""
        for saved in surplus:
            self.lines.append((records.CHECKPOINT_DROPPED, {"trial": saved.trial, "path": saved.path}))
            self.commands.append(Drop(saved.path))
            if not self.retention.has_scores(saved.trial):
                name = self.settings.keep.score_attribute
                text = (
                    f"no checkpoint of trial {saved.trial} has a number as `{name}`: the newest are kept, not the best"
                )
                self._warn("score", text)

    def commit(self, trial: Trial, saved: SavedState) -> None:
        """A trial's own checkpoint is committed: its next start, and that of those who waited for it, loads it."""
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
            )  # one ahead of its report waits for it, or a lost worker would skip the report
        self.answer(trial.id, saved)

    def answer(self, source: str, saved: SavedState | None) -> None:
        """What was awaited of a trial is there; None: it will not come, so its newest checkpoint must do."""
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
        """A trial goes on where the checkpoint of another is; where there is none, at its own, or anew, and it says so."""
        if source is None:
            trial.why = f"trial {of} never saved a checkpoint, so nothing can take over from it: {_HOW_TO_SAVE}"
            self._warn("source", trial.why)
        found = source or trial.checkpoint
        self.set_restore(trial, found)
        trial.iteration = found.iteration if found is not None else 0

    def _warn(self, kind: str, text: str) -> None:
        """Tell people once in a head's life: what goes wrong with one trial goes wrong with all."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.notes.append(text)

    def begin(self, open_attempt: OpenAttempt) -> None:
        """An attempt runs: what it holds counts from here, for to wait in a queue costs nothing."""
        open_attempt.has_started = True
        self.usage.take(open_attempt.resources, self.settings, 1)

    def free(self, trial: Trial, open_attempt: OpenAttempt) -> None:
        """An attempt is over."""
        del self.open_attempts[trial.id]
        if open_attempt.has_started:
            self.usage.take(open_attempt.resources, self.settings, -1)
        self.answer(trial.id, None)
        if trial.restore_from is not None and not trial.restore_from.path and trial.restore_from.trial == trial.id:
            self.set_restore(trial, trial.checkpoint)

    def end(self, trial: Trial, status: TrialStatus, why: str) -> None:
        """A trial is over."""
        self.table.move(trial, status, why)
        before, trial.restore_from = trial.restore_from, None
        self.drop(self.retention.release(before))

    def fresh_attempt(self, trial: Trial, credit: int) -> StartAttempt:
        """A trial takes a slot."""
        trial.attempt += 1
        self.table.move(trial, TrialStatus.RUNNING)
        source = trial.restore_from
        begins_at = source.iteration if source is not None else 0
        credit += max(0, trial.iteration - begins_at)  # repeats of what is known need no answer
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
