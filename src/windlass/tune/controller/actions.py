"""Actions on the trials of a sweep. Pure.

Each action adds a record, and notifies the searcher and the scheduler.
"""

from __future__ import annotations

from typing import Any

from windlass.tune.controller.journal import records
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.controller.state import Command, OpenAttempt, SweepState
from windlass.tune.controller.sweep import SweepView
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import SearchAlgorithm
from windlass.tune.stopper.protocol import Stopper
from windlass.tune.trial import Metrics, SavedState, Trial, TrialStatus

__all__ = ["Data", "SweepActions", "metric_of"]

Data = dict[str, Any]


class SweepActions:
    """State of a sweep, and the actions that can be taken on its trials.

    Args:
        searcher: an opened searcher.
        stopper: None if only the trials themselves, the scheduler and limits end trials.

    Attributes:
        state: trials and attempts.
        metric: metric that defines the best value of a trial; see `metric_of`.
        is_max: whether higher is better.
        replayed: data of the record being replayed; its stopper decision is used, because a stopper may read a clock.
            None outside a replay.
        ended_why: reason why the sweep is over; empty while it runs.
        num_told: number of results that were passed to the searcher.
        reached: limit reported by the stopper; the next `LimitReached` carries it out.
    """

    def __init__(
        self,
        settings: SweepSettings,
        *,
        searcher: SearchAlgorithm,
        scheduler: SweepScheduler,
        stopper: Stopper | None = None,
    ) -> None:
        self.settings = settings
        self.state = SweepState(settings)
        self.searcher = searcher
        self.scheduler = scheduler
        self.stopper = stopper
        self.metric, self.is_max = metric_of(settings, scheduler)
        self.sweep = SweepView(self.state, self.metric, self.is_max, self._end_for_scheduler)
        self.replayed: Data | None = None
        self.num_reports = 0
        self.search_ended = ""
        self.limit = ""
        self.reached = ""
        self.failed = ""
        self.ended_why = ""
        self.at = 0.0
        self._mark = 0
        self.num_told = 0

    def saved(self, trial: str, attempt: int, iteration: int, path: str) -> None:
        """Process a checkpoint that an attempt has committed."""
        open_attempt = self._open_attempt(trial, attempt)
        if open_attempt is None or (iteration <= open_attempt.saved_at and trial not in self.state.awaited_saves):
            return
        self.line(records.TRIAL_SAVED, {"trial": trial, "attempt": attempt, "iteration": iteration, "path": path})
        saved = SavedState(trial=trial, iteration=iteration, path=path)
        self.state.commit(self.state.table.trials[trial], saved)

    def _open_attempt(self, trial: str, attempt: int) -> OpenAttempt | None:
        open_attempt = self.state.open_attempts.get(trial)
        return open_attempt if open_attempt is not None and open_attempt.attempt == attempt else None

    def stop(self, trial: Trial, why: str) -> None:
        """End a trial because of a user's request, a limit, or a restore of the sweep."""
        if not trial.status.is_over:
            self.state.acts.append({"act": "stop", "trial": trial.id, "why": why})
            self.end_trial(trial, why)

    def end_trial(self, trial: Trial, why: str, *, halts: bool = True) -> None:
        """End a trial permanently, and notify the scheduler and the searcher."""
        was_running = trial.status is TrialStatus.RUNNING
        self._terminate(trial, why, halts=halts)
        if was_running:
            self.scheduler.on_complete(self.sweep, trial, trial.last or {})
        else:
            self.scheduler.on_remove(self.sweep, trial)
        self._tell_end(trial, trial.last)

    def _tell_end(self, trial: Trial, result: Metrics | None) -> None:
        self.num_told += 1
        self.searcher.on_complete(trial.number, result)

    def _terminate(self, trial: Trial, why: str, *, halts: bool) -> None:
        if halts:
            self.state.halt(trial, saves=self.settings.saves_at_end)
        self.state.end(trial, TrialStatus.TERMINATED, why)

    def _end_for_scheduler(self, trial: Trial, why: str) -> None:
        """End a trial because the scheduler decided so, and notify only the searcher."""
        self._terminate(trial, why, halts=True)
        self._tell_end(trial, trial.last)

    def line(self, kind: str, data: Data, *, is_first: bool = False) -> None:
        """Add a record; with `is_first`, put it before the records that it has caused."""
        state = self.state
        if state.acts:
            data["acts"] = state.acts
            state.acts = []
        state.lines.insert(self._mark if is_first else len(state.lines), (kind, data))

    def take(self) -> tuple[list[tuple[str, Data]], list[Command]]:
        """Return the records and commands added since the last call, and clear them."""
        state = self.state
        found = state.lines, state.commands
        state.lines, state.commands = [], []
        return found


def metric_of(settings: SweepSettings, scheduler: SweepScheduler) -> tuple[str, bool]:
    """Return the first metric of the sweep or the scheduler (`-` if there is none), and whether higher is better."""
    if settings.objectives.metrics:
        return settings.objectives.metrics[0], settings.objectives.is_max[0]
    return (scheduler.metric or "-"), scheduler.mode != "min"
