"""Pure core of the controller, which turns events into journal records and commands.

It uses no clock, files or randomness, so the same events in the same order give the same sweep, whether live,
restored from the journal, or simulated. The cost of an event does not depend on the number of trials.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from windlass.core.errors import InternalError
from windlass.tune.controller.actions import Data, SweepActions
from windlass.tune.controller.inputs import (
    HEAD_LOST,
    CapacityChanged,
    HeadOpened,
    Input,
    LimitReached,
    SearchEnded,
    TrialChosen,
    TrialSuggested,
    UserRequest,
)
from windlass.tune.controller.journal import records
from windlass.tune.controller.reports import ReportHandler
from windlass.tune.controller.requests import RequestHandler
from windlass.tune.controller.settings import SweepSettings, resources_to_data
from windlass.tune.controller.state import OpenAttempt
from windlass.tune.controller.trial_completion import Then, after_end, why_over, with_a_report
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    SlotJoined,
    SlotLost,
    SlotNoticed,
)
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import SearchAlgorithm
from windlass.tune.stopper.protocol import Stopper
from windlass.tune.trial import ONE_CPU, Metrics, Resources, Trial, TrialStatus

__all__ = ["Core"]


class Core(SweepActions):
    """State machine of one sweep: it defines what each event does.

    The arguments are those of `SweepActions`.
    """

    def __init__(
        self,
        settings: SweepSettings,
        *,
        searcher: SearchAlgorithm,
        scheduler: SweepScheduler,
        stopper: Stopper | None = None,
    ) -> None:
        super().__init__(settings, searcher=searcher, scheduler=scheduler, stopper=stopper)
        self.num_heads = 0
        self._shape: Resources | None = None
        self.reports = ReportHandler(self)
        self._takers: dict[type, Callable[[Any], None]] = {
            AttemptReported: lambda event: self.reports.take(event.trial, event.attempt, event.metrics, event.saved),
            TrialSuggested: self._suggested,
            TrialChosen: self._chosen,
            AttemptStarted: self._started,
            AttemptSaved: lambda event: self.saved(event.trial, event.attempt, event.iteration, event.path),
            AttemptEnded: self._ended,
            HeadOpened: self._opened,
            SearchEnded: self._search_ended,
            LimitReached: self._limit_reached,
            UserRequest: self._asked,
            SlotJoined: lambda event: self.line(records.SLOT_JOINED, _fields(event)),
            SlotLost: lambda event: self.line(records.SLOT_LOST, _fields(event)),
            SlotNoticed: self._noticed,
            CapacityChanged: self._capacity,
        }

    def apply(self, event: Input, at: float) -> None:
        """Process an event that happened at wall time `at`; results are added to `state.lines` and `state.commands`.

        Events of attempts that are no longer open are ignored.

        Raises:
            UsageError: the first reports lack the sweep's metric (`unknown-metric`); nothing was changed.
        """
        self._begin(at if type(event) is not HeadOpened else 0.0)
        self.at = at
        self._takers[type(event)](event)
        self._settle()

    def apply_report(self, trial: str, attempt: int, metrics: Metrics, saved: str, at: float) -> None:
        """Apply an `AttemptReported` with these values, without creating the event, so that replays are fast."""
        self._begin(at)
        self.at = at
        self.reports.take(trial, attempt, metrics, saved)
        self._settle()

    def _begin(self, at: float) -> None:
        """Count resource usage up to `at`, but not the time between two heads."""
        state = self.state
        self._mark = len(state.lines)
        if at > state.usage.at:
            state.usage.tick(at)

    def _settle(self) -> None:
        if not self.state.open_attempts and not self.ended_why:
            self._end_if_over()

    def choose(self, fits: Callable[[Resources], bool], at: float, *, is_last: bool = False) -> bool:
        """Let the scheduler start a trial in a free slot; return False if it starts none.

        Args:
            fits: whether the executor has room for a shape now.
            is_last: the searcher has no new trial right now, so the scheduler need not wait for one.
        """
        if self.state.is_closing:
            return False
        self.at = at
        self._mark = len(self.state.lines)
        self.sweep.fits = fits
        trial = self._lost() or self._choice(is_last)
        if trial is None:
            if self.state.acts:
                self.line(records.CHOICE_DEFERRED, {"is_last": True} if is_last else {}, is_first=True)
                if not self.state.open_attempts and not self.ended_why:
                    self._end_if_over()
            return False
        if not self.sweep.may_start(trial):
            raise InternalError(f"{type(self.scheduler).__name__} chose trial {trial.id}, which cannot start")
        self.state.usage.tick(at)
        self._start(trial, is_last)
        return True

    def _lost(self) -> Trial | None:
        """Return a trial that lost its slot.

        It gets the next free slot, because the scheduler regards it as running.
        """
        waiting = self.state.table.pending.lost.values()
        return next((trial for trial in waiting if self.sweep.may_start(trial)), None)

    def _choice(self, is_last: bool) -> Trial | None:
        before = self.sweep.is_searching
        self.sweep.is_searching = before and not is_last
        trial = self.scheduler.choose(self.sweep)
        self.sweep.is_searching = before
        return trial

    # --------------------------------------------------------------------------------------------------- properties

    @property
    def num_live(self) -> int:
        """Number of trials that have not ended."""
        return len(self.state.table.live)

    @property
    def next_number(self) -> int:
        """Number that the next trial gets."""
        return len(self.state.table.trials)

    def meters_exceeded(self, now: float) -> str:
        """Return the limit in the settings that is reached at wall time `now`, or an empty string if none is."""
        return self.state.usage.exceeded(self.settings, now)

    def wants_trials(self) -> bool:
        """Return whether the searcher may be asked for another trial."""
        return not (self.search_ended or self.limit or self.ended_why or self.state.is_closing)

    # ---------------------------------------------------------------------------------------------------- the search

    def _suggested(self, event: TrialSuggested) -> None:
        number = self.next_number
        suggestion = event.suggestion
        trial = Trial(
            id=f"{number:05d}",
            number=number,
            config=suggestion.config,
            assigned=suggestion.assigned,
            resources=event.resources,
        )
        self.searcher.on_suggested(number, suggestion)
        if trial.resources is not self._shape:  # shapes are slow to hash, and are usually all equal
            self._shape = trial.resources
            self.sweep.shapes.add(trial.resources)
        self.state.table.add(trial)
        self.scheduler.on_add(self.sweep, trial)
        data: Data = {"trial": trial.id, "config": trial.config, "assigned": trial.assigned}
        if suggestion.note is not None:
            data["note"] = suggestion.note
        if event.resources is not ONE_CPU and event.resources != ONE_CPU:
            data["resources"] = resources_to_data(event.resources)
        self.line(records.TRIAL_SUGGESTED, data)

    def _search_ended(self, event: SearchEnded) -> None:
        self.search_ended = event.why
        self.sweep.is_searching = False
        self.line(records.SEARCH_ENDED, {"why": event.why})

    # ------------------------------------------------------------------------------------------------------ attempts

    def _chosen(self, event: TrialChosen) -> None:
        """Replay a choice: the scheduler must choose the same trial again."""
        self.sweep.only = event.trial
        trial = self._choice(event.is_last)
        self.sweep.only = None
        if trial is not None:
            self._start(trial, event.is_last)
        else:
            self.line(records.CHOICE_DEFERRED, {"is_last": True} if event.is_last else {}, is_first=True)

    def _start(self, trial: Trial, is_last: bool) -> None:
        source, why = trial.restore_from, trial.why
        start = self.state.fresh_attempt(trial, self.reports.credit(trial))
        restore = None
        if source is not None:
            restore = {"trial": source.trial, "iteration": source.iteration, "path": source.path}
        data: Data = {"trial": trial.id, "attempt": trial.attempt, "restore": restore}
        if why:
            data["why"] = why
        if is_last:
            data["is_last"] = True
        self.state.commands.append(start)
        self.line(records.TRIAL_CHOSEN, data, is_first=True)

    def _started(self, event: AttemptStarted) -> None:
        open_attempt = self._open_attempt(event.trial, event.attempt)
        if open_attempt is not None and not open_attempt.has_started:
            self.state.begin(open_attempt)
            self.state.table.trials[event.trial].place = sys.intern(event.host or event.slot)
            self.line(records.TRIAL_STARTED, _fields(event))

    def _noticed(self, event: SlotNoticed) -> None:
        """Let the attempt of a slot whose machine is about to go save now and end; it goes on in another slot."""
        open_attempt = self._open_attempt(event.trial, event.attempt)
        if open_attempt is not None:
            open_attempt.is_leaving = True
            if not open_attempt.is_halted:
                self.state.halt(self.state.table.trials[event.trial], saves=True)
        self.line(records.SLOT_NOTICED, _fields(event))

    # ---------------------------------------------------------------------------------------------------------- ends

    def _ended(self, event: AttemptEnded) -> None:
        open_attempt = self._open_attempt(event.trial, event.attempt)
        if open_attempt is None:
            return
        state = self.state
        trial = state.table.trials[event.trial]
        state.free(trial, open_attempt)
        if not open_attempt.is_old:
            event = with_a_report(event, trial, self.settings, self.metric)
        if event.how is AttemptOutcome.FAILED:
            trial.num_failures += 1
            trial.error = event.error
        elif event.how is AttemptOutcome.LOST and event.kind != HEAD_LOST and not open_attempt.is_leaving:
            trial.num_interruptions += 1
        if not trial.status.is_over:
            self._become(trial, event, open_attempt)
        data: Data = {"trial": trial.id, "attempt": event.attempt, "how": event.how.value, "status": trial.status.value}
        data.update(failures=trial.num_failures, interruptions=trial.num_interruptions)
        if event.error or event.kind:
            data.update(error=event.error, error_kind=event.kind)
        if trial.why:
            data["why"] = trial.why
        self.line(records.TRIAL_ENDED, data, is_first=True)
        if event.how is AttemptOutcome.FAILED and trial.status is TrialStatus.ERROR and self.settings.fail_fast:
            self.failed = trial.id
            RequestHandler(self).close(f"trial {trial.id} failed, and fail_fast is set", saves=True)

    def _become(self, trial: Trial, event: AttemptEnded, before: OpenAttempt) -> None:
        """Move a trial to its next status after its attempt has ended."""
        after = after_end(trial, event, self.settings, is_old=before.is_old, is_leaving=before.is_leaving)
        if after.then is Then.GIVEN_UP:
            self._give_up(trial, after.why)
        elif after.then is Then.DONE:
            self.end_trial(trial, after.why, halts=False)
        elif after.then is Then.BACK:
            self.state.table.move(trial, TrialStatus.PENDING, after.why, is_lost=True)
        elif after.then is Then.RETRIED:
            self.state.table.move(trial, TrialStatus.PENDING, after.why)
            self.scheduler.on_error(self.sweep, trial)
            if not trial.status.is_over:
                self.scheduler.on_add(self.sweep, trial)

    def _give_up(self, trial: Trial, why: str) -> None:
        self.state.end(trial, TrialStatus.ERROR, why)
        self.scheduler.on_error(self.sweep, trial)
        self._tell_end(trial, None)

    # ----------------------------------------------------------------------------------------------------- the sweep

    def _opened(self, event: HeadOpened) -> None:
        self.num_heads = event.number
        self.state.is_closing = False
        self.state.usage.open(self.at)
        self.line(records.SWEEP_OPENED, {"head": {"host": event.host, "pid": event.pid}, "number": event.number})

    def _limit_reached(self, event: LimitReached) -> None:
        self.limit, self.reached = event.why, ""
        for trial in list(self.state.table.live.values()):
            self.stop(trial, event.why)
        self.line(records.LIMIT_REACHED, {"why": event.why}, is_first=True)

    def _asked(self, event: UserRequest) -> None:
        RequestHandler(self).take(event)
        self.line(records.SWEEP_REQUESTED, {"what": event.what, **event.facts}, is_first=True)

    def _capacity(self, event: CapacityChanged) -> None:
        self.sweep.capacity = dict(event.total)
        self.line(records.CAPACITY_CHANGED, {"total": self.sweep.capacity})

    def _end_if_over(self) -> None:
        why = why_over(self.num_live, failed=self.failed, limit=self.limit, search_ended=self.search_ended)
        if why:
            self.ended_why = why
            counts = {status.value: num for status, num in self.state.table.counts.items() if num}
            self.line(records.SWEEP_ENDED, {"why": why, "counts": counts})


def _fields(event: Any) -> Data:
    return {name: getattr(event, name) for name in event.__slots__}
