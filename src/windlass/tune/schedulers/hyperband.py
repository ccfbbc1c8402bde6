"""Synchronous HyperBand, with the same decisions as Ray Tune's scheduler of this name.

Source: Li et al. 2018, "Hyperband: a novel bandit-based approach to hyperparameter optimization" (arXiv 1603.06560).
As in Ray, trials end at max_t, resumed ones too, and times of milestones are absolute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from windlass.core.phrases import count
from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.fifo import ENDLESS, FIFO, check_mode, refuse
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.trial import Metrics, Trial, TrialStatus

__all__ = ["Bracket", "BracketTrial", "HyperBandScheduler"]


class HyperBandScheduler(FIFO):
    """Scheduler that fills brackets with trials and halves them at milestones.

    At each milestone of a bracket, its best 1/reduction_factor continue.

    A band has brackets s = 0, 1, ..., each with ceil((s_max + 1) / (s + 1) * eta**s) trials that meet first at
    max_t / eta**s. Brackets are filled from the smallest up, then a new band begins. A free slot goes to the oldest
    band, there to the bracket that is least complete.

    Args:
        time_attr: measure of progress; every result must have it.
        max_t: where trials end.
        reduction_factor: eta, from one milestone to the next, and the share that is kept.
        stop_last_trials: False lets trials that survive all halvings continue.
    """

    needs_saving = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        if not max_t > 0:
            raise refuse(f"max_t is {max_t!r}", "it must be above 0")
        if not reduction_factor > 1:
            raise refuse(f"reduction_factor is {reduction_factor!r}", "it must be above 1")
        check_mode(mode)
        super().__init__()
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.max_t, self.reduction_factor, self.stop_last_trials = max_t, reduction_factor, stop_last_trials
        self._num_brackets = round(math.log(max_t) / math.log(reduction_factor)) + 1  # in a band
        self._bands: list[list[Bracket | None]] = [[]]  # None: its first milestone would be 0
        self._open: Bracket | None = None
        self._awaits_trials: Bracket | None = None  # the search has ended, and it is not full
        self._places: dict[str, tuple[Bracket, int, int]] = {}  # with the indexes of band and bracket

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_add(sweep, trial)
        bracket = self._open
        while bracket is None or bracket.is_filled or (sweep.is_searching and bracket.has_had_all):
            if len(self._bands[-1]) == self._num_brackets:
                self._bands.append([])
            bracket = self._made(self._next_s(len(self._bands[-1])))
            self._bands[-1].append(bracket)
        self._open = bracket
        bracket.add(trial)
        self._places[trial.id] = bracket, len(self._bands) - 1, len(self._bands[-1]) - 1

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        bracket = self._report(sweep, trial, result)
        return CONTINUE if bracket.may_continue(trial) else self._process(sweep, bracket, trial)

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        self._leave(sweep, trial)

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._leave(sweep, trial)

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._leave(sweep, trial)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return the first trial in the least complete bracket.

        If no trial can start, brackets that are not full are continued.
        """
        if not sweep.pending and not sweep.is_searching:
            awaits, self._awaits_trials = self._awaits_trials, None
            if awaits is not None:
                self._process(sweep, awaits)
            if not sweep.running and sweep.paused:
                self._revive(sweep)
        fitting = (trial for trial in sweep.pending.values() if trial.id in self._places and sweep.may_start(trial))
        return min(fitting, key=self._rank, default=None)

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the milestone, if `time_attr` counts reports."""
        if self.time_attr != "training_iteration" or trial.id not in self._places:
            return 1
        bracket = self._places[trial.id][0]
        return ENDLESS if bracket.is_free else min(max(bracket.milestone - trial.iteration, 1), ENDLESS)

    def _next_s(self, num_made: int) -> int:
        return num_made

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        bracket, band, index = self._places[trial.id]
        return band, bracket.completion, index, self.turn(trial)

    def _made(self, s: int) -> Bracket | None:
        eta = self.reduction_factor
        milestone = int(self.max_t * eta**-s)
        if milestone == 0:
            return None
        size = math.ceil(self._num_brackets / (s + 1) * eta**s)
        return Bracket(
            size=size, milestone=milestone, max_t=self.max_t, eta=eta, halves=s, stops_last=self.stop_last_trials
        )

    def _report(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Bracket:
        if self.time_attr not in result:
            raise BadValueError(
                f"trial {trial.id} did not report {self.time_attr!r}, by which {type(self).__name__} measures time",
                hint=f"report it every time, or set time_attr to one of {', '.join(sorted(result))}",
                code="unknown-metric",
            )
        bracket = self._places[trial.id][0]
        score = self.score(sweep, result) if self.metric_in(sweep) in result else None
        bracket.report(trial, result[self.time_attr], score)
        return bracket

    def _process(self, sweep: ScheduledSweep, bracket: Bracket, current: Trial | None = None) -> Verdict:
        """Halve a bracket once all its trials have reached the milestone.

        Returns the verdict on the trial that has just reported.
        """
        at = f"at {self.time_attr} {bracket.milestone}"
        if not bracket.is_done:
            return Verdict(
                SchedulerDecision.PAUSE, f"it waits {at} for {count(len(bracket.behind), 'other trial')} of its bracket"
            )
        if sweep.is_searching and bracket is self._open and bracket.is_fresh and not bracket.has_had_all:
            self._awaits_trials = bracket
            return Verdict(SchedulerDecision.PAUSE, f"it waits {at} until its bracket has {bracket.size} trials")
        if bracket.is_finished:
            return self._finish(sweep, bracket, [one.trial for one in bracket.live.values()], current, at)
        return self._halve(sweep, bracket, current, at)

    def _halve(self, sweep: ScheduledSweep, bracket: Bracket, current: Trial | None, at: str) -> Verdict:
        num = len(bracket.live)
        good, bad = bracket.halve()
        verdict = self._end(sweep, bracket, bad, current, f"not among the best {len(good)} of {num} {at}")
        for trial in good:
            if not bracket.may_continue(trial):
                continue
            if trial is current:
                verdict = CONTINUE
            elif trial.status is TrialStatus.PAUSED:
                sweep.unpause(trial, f"among the best {len(good)} of {num} {at}")
        if bracket.is_finished:
            over = self._finish(sweep, bracket, good, current, at)
            return verdict or over
        return verdict or Verdict(SchedulerDecision.PAUSE, f"it is already beyond {self.time_attr} {bracket.milestone}")

    def _finish(
        self, sweep: ScheduledSweep, bracket: Bracket, trials: list[Trial], current: Trial | None, at: str
    ) -> Verdict:
        ended = self._end(sweep, bracket, trials, current, f"its bracket ends {at}")
        return ended or Verdict(SchedulerDecision.STOP, f"its bracket ends {at}")

    def _end(
        self, sweep: ScheduledSweep, bracket: Bracket, trials: Iterable[Trial], current: Trial | None, why: str
    ) -> Verdict | None:
        verdict = None
        for trial in trials:
            if trial is current:
                verdict = Verdict(SchedulerDecision.STOP, why)
            else:
                sweep.stop(trial, why)
                del self._places[trial.id]
                self._turns.pop(trial.id, None)
            bracket.remove(trial)
        return verdict

    def _leave(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._turns.pop(trial.id, None)
        place = self._places.pop(trial.id, None)
        if place is None:
            return
        place[0].remove(trial)
        if not place[0].is_finished:
            self._process(sweep, place[0])

    def _revive(self, sweep: ScheduledSweep) -> None:
        """Continue a bracket whose trials all wait at a milestone, if nothing else runs."""
        for band in self._bands:
            for bracket in band:
                if bracket is None or not any(one.trial.status is TrialStatus.PAUSED for one in bracket.live.values()):
                    continue
                self._process(sweep, bracket)
                if sweep.pending:
                    return


@dataclass(slots=True)
class BracketTrial:
    """Trial in a bracket, with its newest result.

    Attributes:
        time: 0 before the first result.
        score: more is better; None where the result has no metric.
    """

    trial: Trial
    time: float = 0
    score: float | None = None


class Bracket:
    """Trials in one bracket and their progress, which determine which of them are stopped at a milestone.

    Attributes:
        size: number of trials that it takes, and keeps after the next halving.
        milestone: the time at which a trial waits for the others.
        halves: halvings that are left.
        live: trials that have not ended, in the order in which they were added.
        behind: ids of trials that have not reached the milestone.
    """

    def __init__(self, *, size: int, milestone: int, max_t: float, eta: float, halves: int, stops_last: bool) -> None:
        self.size, self.milestone, self.halves = size, milestone, halves
        self.live: dict[str, BracketTrial] = {}
        self._num_awaited = size
        self._num_halves = halves
        self.behind: set[str] = set()
        self._max_t, self._eta, self._stops_last = max_t, eta, stops_last
        self._total_work = _total_work(size, milestone, max_t, eta, halves)
        self._progress: float = 0

    @property
    def is_filled(self) -> bool:
        return len(self.live) == self.size

    @property
    def has_had_all(self) -> bool:
        """Return whether the bracket has had its full number of trials, counting those that have finished."""
        return self._num_awaited <= 0

    @property
    def is_fresh(self) -> bool:
        """Return whether the bracket has not been halved yet."""
        return self.halves == self._num_halves

    @property
    def is_done(self) -> bool:
        """Return whether all live trials have reached the milestone."""
        return not self.behind

    @property
    def is_finished(self) -> bool:
        """Return whether all trials have reached the last milestone."""
        return self._stops_last and self.halves == 0 and self.is_done

    @property
    def is_free(self) -> bool:
        """Return whether the remaining trials continue without a limit."""
        return not self._stops_last and self.halves == 0

    @property
    def completion(self) -> float:
        """Return the fraction of the bracket's work that is done; work that failed trials left undone stays undone."""
        return 1.0 if self.is_finished else min(self._progress / self._total_work, 1.0)

    def add(self, trial: Trial) -> None:
        """Add a trial, which must reach the current milestone."""
        self.live[trial.id] = BracketTrial(trial)
        self._num_awaited -= 1
        self._place(trial.id)

    def report(self, trial: Trial, time: float, score: float | None) -> None:
        """Record the newest result of a live trial."""
        standing = self.live[trial.id]
        self._progress += time - standing.time
        standing.time, standing.score = time, score
        self._place(trial.id)

    def may_continue(self, trial: Trial) -> bool:
        """Return whether a trial may continue, because it is before the milestone or there is no further one."""
        return self.is_free or self.live[trial.id].time < self.milestone

    def remove(self, trial: Trial) -> None:
        """Remove a trial that has ended."""
        self.live.pop(trial.id, None)
        self.behind.discard(trial.id)

    def halve(self) -> tuple[list[Trial], list[Trial]]:
        """Set the next milestone; return the trials that stay and those that do not, each worst first.

        Raises:
            UsageError: the newest result of one of them has no metric.
        """
        if self.is_free:
            return [standing.trial for standing in self.live.values()], []
        self.halves -= 1
        self.size = math.ceil(self.size / self._eta)
        self.milestone = int(min(self.milestone * self._eta, self._max_t))
        for name in self.live:
            self._place(name)
        ranked = [standing.trial for standing in sorted(self.live.values(), key=_score_of)]
        return ranked[-self.size :], ranked[: -self.size]

    def _place(self, name: str) -> None:
        if self.live[name].time >= self.milestone:
            self.behind.discard(name)
        else:
            self.behind.add(name)


def _score_of(standing: BracketTrial) -> float:
    if standing.score is None:
        raise BadValueError(
            f"trial {standing.trial.id} must be compared with other trials, but its newest result lacks the metric",
            hint="report the metric with every result, at least at the milestones",
            code="unknown-metric",
        )
    return standing.score


def _total_work(size: int, milestone: int, max_t: float, eta: float, halves: int) -> float:
    work, number, step = 0, float(size), float(milestone)
    for _ in range(halves + 1):
        work += int(number) * int(step)
        number = math.ceil(number / eta)
        step = int(min(step * eta, max_t - milestone))
    return work
