"""Handling of trial reports: count them, let the stopper and scheduler decide, answer the worker. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from windlass.tune.controller.actions import Data, SweepActions
from windlass.tune.controller.journal import records
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.controller.state import OpenAttempt
from windlass.tune.errors import BadValueError
from windlass.tune.executors.protocol import Go, Halt
from windlass.tune.schedulers.protocol import SchedulerDecision, SweepScheduler, Verdict
from windlass.tune.stopper.limits import metrics_of
from windlass.tune.stopper.protocol import Stopper
from windlass.tune.trial import Metrics, SavedState, Trial, TrialStatus

__all__ = ["ReportHandler"]

_CONTINUE, _RUNNING = SchedulerDecision.CONTINUE, TrialStatus.RUNNING
_STOPPED = "the stop condition holds"


class ReportHandler:
    """Handler for the reports of all trials.

    Args:
        core: what can be done to the trials.
    """

    def __init__(self, core: SweepActions) -> None:
        self._core = core
        self._state = core.state
        self._metric, self._is_max = core.metric, core.is_max
        self._required = _required_metrics(core.settings, core.metric, core.scheduler, core.stopper)
        self._stopper_credit: Callable[[str], int] | None = getattr(core.stopper, "credit", None)

    def take(self, trial_id: str, attempt: int, metrics: Metrics, saved: str) -> None:
        """Process a report.

        Raises:
            UsageError: the first report lacks the sweep's metric (`unknown-metric`); nothing was changed.
        """
        core, state = self._core, self._state
        open_attempt = state.open_attempts.get(trial_id)
        if open_attempt is None or open_attempt.attempt != attempt or open_attempt.is_old:
            return
        trial = state.table.trials[trial_id]
        iteration = metrics["training_iteration"]
        awaited = state.awaited_saves.get(trial_id) if state.awaited_saves else None
        if awaited is not None and iteration > awaited.upto:
            state.answer(trial_id, None)
        if trial.status.is_over:
            return
        if iteration <= trial.iteration:  # counted before an attempt was lost: scheduler and searcher have it already
            if saved:
                core.saved(trial_id, attempt, iteration, saved)
            return
        if self._required:
            if core.replayed is None:
                _check_metrics(metrics, self._required)
            self._required = ()
        core.num_reports += 1
        trial.iteration = iteration
        trial.last = metrics
        self._update_best(trial, metrics)
        data: Data = {"trial": trial_id, "attempt": attempt, "metrics": metrics}
        if saved:
            state.commit(trial, SavedState(trial=trial_id, iteration=iteration, path=saved))
            data["saved"] = saved
        elif open_attempt.saved_at == iteration:
            state.reported(trial, open_attempt)
        if trial.status is _RUNNING:
            self._decide(trial, open_attempt, metrics, data)
        else:
            data.update(decision="noop", by="head", why="the report arrived while the trial was being paused")
        core.line(records.TRIAL_REPORTED, data, is_first=True)
        if core.stopper is not None and core.stopper.stop_all():
            core.reached = "the stopper ended the sweep"

    def _update_best(self, trial: Trial, metrics: Metrics) -> None:
        value = metrics.get(self._metric)
        if not isinstance(value, (int, float)) or math.isnan(value):
            return
        if trial.best is None or (value > trial.best if self._is_max else value < trial.best):
            trial.best = value

    def _decide(self, trial: Trial, open_attempt: OpenAttempt, metrics: Metrics, data: Data) -> None:
        """Let the stopper or the scheduler decide, answer the worker, and notify the searcher."""
        core = self._core
        verdict, by = self._verdict(trial, metrics)
        decision = verdict.decision
        is_running = trial.status is _RUNNING
        if decision is not _CONTINUE:
            data.update(decision=decision.value, by=by, why=verdict.why)
            if decision is SchedulerDecision.STOP and is_running:
                core.end_trial(trial, verdict.why, halts=by != "trial")
                return
        if decision is SchedulerDecision.PAUSE and is_running:
            self._state.pause(trial, verdict.why)
        elif is_running:
            self._answer(trial, open_attempt)
        if not trial.status.is_over:
            core.num_told += 1
            core.searcher.on_result(trial.number, metrics)

    def _verdict(self, trial: Trial, metrics: Metrics) -> tuple[Verdict, str]:
        """Return the decision on a report, and who made it: `stopper`, `trial` or `scheduler`."""
        core = self._core
        if core.stopper is not None:
            stops = bool(core.stopper(trial.id, metrics))
            if (core.replayed.get("by") == "stopper") if core.replayed is not None else stops:
                return Verdict(SchedulerDecision.STOP, _STOPPED), "stopper"
        if metrics.get("done"):
            return Verdict(SchedulerDecision.STOP, "the trial reported `done`"), "trial"
        core.sweep.reporting = trial.id
        verdict = core.scheduler.on_result(core.sweep, trial, metrics)
        core.sweep.reporting = ""
        return verdict, "scheduler"

    def _answer(self, trial: Trial, open_attempt: OpenAttempt) -> None:
        """Let the worker continue, but send nothing while more than half of its credit is left."""
        if open_attempt.is_halted:
            open_attempt.wants_save = False
            return
        left = open_attempt.upto - trial.iteration
        credit = self.credit(trial)
        if open_attempt.wants_save or 2 * left <= credit:
            upto = max(open_attempt.upto, trial.iteration + credit)
            go = Go(
                trial=trial.id,
                attempt=open_attempt.attempt,
                credit=upto - open_attempt.upto,
                saves=open_attempt.wants_save,
                upto=upto,
            )
            open_attempt.upto, open_attempt.wants_save = upto, False
            self._state.commands.append(go)

    def credit(self, trial: Trial) -> int:
        """Return how many reports a trial may send without an answer.

        This is the smaller of the scheduler's credit and the stopper's.
        """
        core = self._core
        credit = core.scheduler.credit(core.sweep, trial)
        if credit <= 1:
            return 1
        if core.stopper is None:
            return credit
        return max(1, min(credit, self._stopper_credit(trial.id))) if self._stopper_credit is not None else 1

    def reattached(self, trial_id: str) -> None:
        """Resend orders that an attempt may have missed while there was no head. Writes no record."""
        state = self._state
        open_attempt, trial = state.open_attempts[trial_id], state.table.trials[trial_id]
        saves = trial_id in state.awaited_saves
        if trial.status is _RUNNING and not open_attempt.is_halted:
            open_attempt.upto = max(open_attempt.upto, trial.iteration + self.credit(trial))
            go = Go(trial=trial_id, attempt=open_attempt.attempt, credit=0, saves=saves, upto=open_attempt.upto)
            state.commands.append(go)
        else:
            state.commands.append(Halt(trial=trial_id, attempt=open_attempt.attempt, saves=saves))


def _required_metrics(
    settings: SweepSettings, metric: str, scheduler: SweepScheduler, stopper: Stopper | None
) -> tuple[str, ...]:
    """Return the metrics that the sweep, its scheduler and its stopper need in the first report."""
    names = (
        *settings.objectives.metrics,
        settings.half.metric,
        metric,
        *getattr(scheduler, "times", ()),
        *metrics_of(stopper),
    )
    return tuple(dict.fromkeys(name for name in names if name not in ("", "-", "done"))) if settings.is_strict else ()


def _check_metrics(metrics: Metrics, required: Sequence[str]) -> None:
    """Check that the first report in a sweep has every metric that decisions need.

    Raises:
        UsageError: a metric is missing (`unknown-metric`).
    """
    missing = [name for name in required if name not in metrics]
    if missing:
        reported = ", ".join(f"`{name}`" for name in metrics)
        raise BadValueError(
            f"no trial reports `{missing[0]}`; the first report has {reported}",
            hint=f"use one of these names instead, or report `{missing[0]}` from the first report on",
            code="unknown-metric",
        )
