"""Variant of ASHA that stops trials, with the same decisions as Ray Tune's scheduler of this name.

Source: Li et al. 2018, "A system for massively parallel hyperparameter tuning" (arXiv 1810.05934); there trials are
paused and promoted instead, which is `asha_promotion`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

from windlass.tune.schedulers.fifo import ENDLESS, FIFO, check_mode, refuse
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.trial import Metrics, Trial

__all__ = ["AsyncHyperBandScheduler", "RunningQuantile", "check_rungs", "draw_bracket", "milestones"]


class AsyncHyperBandScheduler(FIFO):
    """Scheduler that stops a trial at a milestone unless it is among the best.

    It must be among the best 1/reduction_factor of the trials that have reached the milestone.

    The first to arrive continues. A result counts at the highest milestone that it has reached and that has none of this
    trial yet. Results without `time_attr` or metric are skipped.

    Args:
        time_attr: measure of progress; must not decrease.
        max_t: where trials are stopped.
        grace_period: the first milestone.
        reduction_factor: from one milestone to the next, and the share that continues.
        brackets: bracket s begins s milestones later; a trial's is drawn, those with more milestones more often.
        stop_last_trials: False lets trials that pass the last milestone continue.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        check_rungs(max_t, grace_period, reduction_factor, brackets)
        check_mode(mode)
        super().__init__()
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.max_t, self.grace_period, self.reduction_factor = max_t, grace_period, reduction_factor
        self.brackets, self.stop_last_trials = brackets, stop_last_trials
        self._rungs = [milestones(max_t, grace_period, reduction_factor, s) for s in range(brackets)]
        share = (1 - 1 / reduction_factor) * 100 / 100
        self._cutoffs = [[RunningQuantile(share) for _ in rungs] for rungs in self._rungs]
        self._bracket_of: dict[str, int] = {}
        self._recorded: dict[str, int] = {}  # bit k: has a score at the k-th highest milestone of its bracket

    @property
    def times(self) -> tuple[str, ...]:
        """Names that the first report must have; without the time, all results would be skipped."""
        return (self.time_attr,)

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_add(sweep, trial)
        self._bracket_of[trial.id] = draw_bracket(sweep, trial, [len(rungs) for rungs in self._rungs])

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        if self.time_attr not in result or self.metric_in(sweep) not in result:
            return CONTINUE
        if result[self.time_attr] >= self.max_t and self.stop_last_trials:
            return Verdict(SchedulerDecision.STOP, f"it has run for {self.max_t:g} {self.time_attr}")
        return self._judge(sweep, trial, result)

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        super().on_complete(sweep, trial, result)
        if self.time_attr in result and self.metric_in(sweep) in result and trial.id in self._bracket_of:
            self._judge(sweep, trial, result)
            del self._bracket_of[trial.id]

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_remove(sweep, trial)
        self._bracket_of.pop(trial.id, None)

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the next milestone, if `time_attr` counts reports."""
        if self.time_attr != "training_iteration" or trial.id not in self._bracket_of:
            return 1
        recorded = self._recorded.get(trial.id, 0)
        ahead = self.max_t if self.stop_last_trials else math.inf
        for index, milestone in enumerate(self._rungs[self._bracket_of[trial.id]]):
            is_recorded = recorded >> index & 1
            if milestone > trial.iteration:
                ahead = min(ahead, milestone)
            elif not is_recorded:
                return 1
            elif not self.stop_last_trials:
                break
        return min(max(math.ceil(ahead) - trial.iteration, 1), ENDLESS) if ahead < math.inf else ENDLESS

    def _judge(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        time, bracket = result[self.time_attr], self._bracket_of[trial.id]
        recorded = self._recorded.get(trial.id, 0)
        for index, milestone in enumerate(self._rungs[bracket]):
            is_recorded = recorded >> index & 1
            if is_recorded and time >= milestone and not self.stop_last_trials:
                return CONTINUE
            if not (is_recorded or time < milestone):
                self._recorded[trial.id] = recorded | 1 << index
                return self._record(bracket, index, self.score(sweep, result), self.sign_in(sweep))
        return CONTINUE

    def _record(self, bracket: int, index: int, score: float, sign: float) -> Verdict:
        quantile = self._cutoffs[bracket][index]
        cutoff = quantile.value
        quantile.add(score)
        if not score < cutoff:
            return CONTINUE
        at = f"at {self.time_attr} {self._rungs[bracket][index]:g}"
        side = "below" if sign > 0 else "above"
        return Verdict(SchedulerDecision.STOP, f"{sign * score:.6g} is {side} the cutoff {sign * cutoff:.6g} {at}")


def check_rungs(max_t: float, grace_period: float, reduction_factor: float, brackets: int) -> None:
    """Check that the arguments result in valid milestones.

    Raises:
        UsageError: one of them is out of its range (`invalid-value`).
    """
    given: dict[str, Any] = {
        "max_t": max_t,
        "grace_period": grace_period,
        "reduction_factor": reduction_factor,
        "brackets": brackets,
    }
    for name, value in given.items():
        if not isinstance(value, Real):
            raise refuse(f"{name} is {value!r}", "it must be a number")
    if not 0 < max_t < math.inf:
        raise refuse(f"max_t is {max_t!r}", "it must be above 0 and finite")
    if not 0 < grace_period <= max_t:
        raise refuse(f"grace_period is {grace_period!r}", f"it must be above 0 and at most max_t, {max_t!r}")
    if not reduction_factor > 1:
        raise refuse(f"reduction_factor is {reduction_factor!r}", "it must be above 1")
    if not (isinstance(given["brackets"], Integral) and brackets > 0):
        raise refuse(f"brackets is {brackets!r}", "it must be a whole number, 1 or more")


def milestones(max_t: float, grace_period: float, reduction_factor: float, bracket: int) -> list[float]:
    """Return the milestones of a bracket, highest first.

    They are grace_period * reduction_factor ** (bracket, bracket + 1, ...).
    """
    num = int(math.log(max_t / grace_period) / math.log(reduction_factor) - bracket + 1)
    return [grace_period * reduction_factor ** (k + bracket) for k in reversed(range(num))]


def draw_bracket(sweep: ScheduledSweep, trial: Trial, sizes: list[int]) -> int:
    """Choose a bracket for a trial at random, with weights exp(number of milestones).

    The same trial always gets the same bracket.
    """
    if len(sizes) == 1:
        return 0
    weights = list(accumulate(math.e ** (size - max(sizes)) for size in sizes))
    return min(bisect_right(weights, sweep.draw("bracket", trial.id).random() * weights[-1]), len(sizes) - 1)


class RunningQuantile:
    """Quantile that equals numpy's `nanquantile(values, share)` bit for bit, and is updated as values are added.

    Two heaps: those up to the quantile, largest on top, and those above it. As values only come, the border between
    them only moves up.
    """

    __slots__ = ("_above", "_below", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._below: list[float] = []  # negated
        self._above: list[float] = []

    def add(self, value: float) -> None:
        """Add a number; NaN is ignored."""
        if math.isnan(value):
            return
        if self._below and value < -self._below[0]:
            heappush(self._below, -value)
        else:
            heappush(self._above, value)
        num_below = math.floor((len(self._below) + len(self._above) - 1) * self._share) + 1
        while len(self._below) < num_below:
            heappush(self._below, -heappop(self._above))
        while len(self._below) > num_below:
            heappush(self._above, -heappop(self._below))

    @property
    def value(self) -> float:
        """Return the quantile, with linear interpolation between neighbours, or NaN if there are no values."""
        if not self._below:
            return math.nan
        place = (len(self._below) + len(self._above) - 1) * self._share
        low = -self._below[0]
        high = self._above[0] if self._above else low
        part = place - math.floor(place)
        gap = high - low
        return high - gap * (1 - part) if part >= 0.5 else low + gap * part
