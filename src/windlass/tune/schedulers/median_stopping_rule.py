"""The median stopping rule: stop a trial whose best result is worse than the median of the others' means.

Source: Golovin et al. 2017, "Google Vizier: a service for black-box optimization", section 3.2.1.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort

from windlass.tune.schedulers.fifo import ENDLESS, FIFO, check_mode
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.trial import Metrics, Trial

__all__ = ["MedianStoppingRule", "RunningMean"]

_NUM_ASKED = 4096


class MedianStoppingRule(FIFO):
    """Scheduler that stops trials worse than the median of the others.

    At time t it compares a trial's best value with the median of the others' means over [grace_period, t].

    Only trials that have a result at t or later count. With fewer than `min_samples_required` of them the trial is
    paused for one that waits, if any. Decisions are those of Ray Tune's rule of the same name, which reads every
    result of every trial each time; here a result costs O(log n) where results share their times (iterations), else
    O(n log r) for n trials of r results.

    Args:
        time_attr: measure of progress.
        grace_period: results before it do not count, and nothing is stopped.
        min_samples_required: trials over which a median is taken, at least.
        min_time_slice: shortest run of a trial before it is paused for others again.
        hard_stop: False pauses a trial instead, once; it resumes when no other trial waits.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        check_mode(mode)
        super().__init__()
        self.needs_saving = not hard_stop
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.grace_period, self.min_samples_required = grace_period, min_samples_required
        self.min_time_slice, self.hard_stop = min_time_slice, hard_stop
        self._means: dict[str, RunningMean] = {}
        self._best: dict[str, float] = {}
        self._paused_at: dict[str, float] = {}
        self._stopped: set[str] = set()
        self._by_time = _MeansByTime(self._means)

    @property
    def times(self) -> tuple[str, ...]:
        """Names that the first report must have; without the time, all results would be skipped."""
        return (self.time_attr,)

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        if self.time_attr not in result or self.metric_in(sweep) not in result or trial.id in self._stopped:
            return CONTINUE
        time = result[self.time_attr]
        self._record(sweep, trial, result)
        if time < self.grace_period:
            return CONTINUE
        means = self._by_time.others(trial.id, time)
        if len(means) < self.min_samples_required:
            return self._give_way(sweep, trial, time)
        return self._compare(sweep, trial, means, time)

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        super().on_complete(sweep, trial, result)
        if self.time_attr in result and self.metric_in(sweep) in result:
            self._record(sweep, trial, result)
        self._best.pop(trial.id, None)
        self._paused_at.pop(trial.id, None)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return a new trial if there is one, else a paused one."""
        return None if sweep.is_searching and not sweep.pending else super().choose(sweep)

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the end of the grace period, if `time_attr` counts reports."""
        if self.time_attr != "training_iteration":
            return 1
        return min(max(math.ceil(self.grace_period) - trial.iteration, 1), ENDLESS)

    def _record(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        time, value = result[self.time_attr], self.score(sweep, result)
        best = self._best.get(trial.id)
        if best is None or value > best:
            self._best[trial.id] = value
        self._by_time.add(trial.id, time, value if time >= self.grace_period else None)

    def _give_way(self, sweep: ScheduledSweep, trial: Trial, time: float) -> Verdict:
        waited = time - self._paused_at.get(trial.id, -math.inf)
        if not (waited > self.min_time_slice and (sweep.pending or sweep.paused or sweep.is_searching)):
            return CONTINUE
        self._paused_at[trial.id] = time
        why = f"too few trials have reached {self.time_attr} {time:g} for a median; others wait for a slot"
        return Verdict(SchedulerDecision.PAUSE, why)

    def _compare(self, sweep: ScheduledSweep, trial: Trial, means: _Without, time: float) -> Verdict:
        median, best = means.median(), self._best[trial.id]
        if max(median, best) == best:  # in this order: a best of NaN is worse than any median
            return CONTINUE
        self._stopped.add(trial.id)
        sign = self.sign_in(sweep)
        why = f"its best, {sign * best:.6g}, is worse than the median {sign * median:.6g} of {len(means)} others"
        decision = SchedulerDecision.STOP if self.hard_stop else SchedulerDecision.PAUSE
        return Verdict(decision, f"{why} at {self.time_attr} {time:g}")


class _Without:
    """Sorted numbers of which one is left out."""

    def __init__(self, values: list[float], left_out: float) -> None:
        self._values = values
        index = bisect_left(values, left_out) if math.isfinite(left_out) else len(values)
        self._gap = index if index < len(values) and values[index] == left_out else len(values)

    def __len__(self) -> int:
        return len(self._values) - (self._gap < len(self._values))

    def median(self) -> float:
        half = len(self) // 2
        if len(self) % 2:
            return self._at(half)
        return (self._at(half - 1) + self._at(half)) / 2

    def _at(self, index: int) -> float:
        return self._values[index + (index >= self._gap)]


class _MeansByTime:
    """Sorted means of all trials that have reached a time, cached for times that are requested repeatedly."""

    def __init__(self, means: dict[str, RunningMean]) -> None:
        self._means = means
        self._kept: dict[float, list[float]] = {}
        self._times: list[float] = []  # the keys of `_kept`, sorted
        self._asked: dict[float, None] = {}  # the newest of them

    def add(self, trial: str, time: float, value: float | None) -> None:
        """Add a report.

        None does not count towards the mean, but the trial has reached this time.
        """
        mean = self._means.setdefault(trial, RunningMean())
        if time < mean.last:
            mean = self._restart(trial)
        first = bisect_left(self._times, mean.last) if math.isfinite(mean.last) else 0
        touched = self._times[first : bisect_right(self._times, time)]
        for key in touched:
            if key == mean.last:
                _take_out(self._kept[key], mean.at(key))
        mean.last = time
        if value is not None:
            mean.add(time, value)
        for key in touched:
            if math.isfinite(mean.at(key)):
                insort(self._kept[key], mean.at(key))

    def others(self, trial: str, time: float) -> _Without:
        """Return the finite means, at a time, of all other trials that have reached it."""
        values = self._kept.get(time)
        if values is None:
            found = (mean.at(time) for mean in self._means.values() if mean.last >= time)
            values = sorted(value for value in found if math.isfinite(value))
            self._remember(time, values)
        return _Without(values, self._means[trial].at(time))

    def _remember(self, time: float, values: list[float]) -> None:
        if time in self._asked:
            self._kept[time] = values
            insort(self._times, time)
        self._asked[time] = None
        if len(self._asked) > _NUM_ASKED:
            del self._asked[next(iter(self._asked))]

    def _restart(self, trial: str) -> RunningMean:
        """Reset a trial whose time has decreased; the cache is rebuilt when it is needed."""
        self._kept.clear()
        self._times.clear()
        self._means[trial] = RunningMean()
        return self._means[trial]


def _take_out(values: list[float], value: float) -> None:
    if math.isfinite(value):
        del values[bisect_left(values, value)]


class RunningMean:
    """Running means of a trial's values, exact except for one rounding. Takes 16 bytes per value.

    Attributes:
        last: the time that was added last, counted or not.
    """

    __slots__ = ("_is_finite", "_means", "_parts", "_times", "last")

    def __init__(self) -> None:
        self.last = -math.inf
        self._times = array("d")
        self._means = array("d")
        self._parts: list[float] = []  # the exact sum, as numbers that do not overlap (Shewchuk 1997)
        self._is_finite = True

    def add(self, time: float, value: float) -> None:
        """Add a value; times must not decrease."""
        self._is_finite = self._is_finite and math.isfinite(value)
        if self._is_finite:
            _grow(self._parts, value)
        self._times.append(time)
        self._means.append(math.fsum(self._parts) / len(self._times) if self._is_finite else math.nan)

    def at(self, time: float) -> float:
        """Return the mean of the values up to and including a time; NaN if there are none, or one is not finite."""
        index = bisect_right(self._times, time)
        return self._means[index - 1] if index else math.nan


def _grow(parts: list[float], value: float) -> None:
    kept = 0
    for part in parts:
        small, large = (value, part) if abs(value) < abs(part) else (part, value)
        total = large + small
        rounding = small - (total - large)
        if rounding:
            parts[kept] = rounding
            kept += 1
        value = total
    parts[kept:] = [value]
