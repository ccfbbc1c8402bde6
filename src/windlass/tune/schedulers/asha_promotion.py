"""ASHA as in its paper: a trial pauses at every rung, and resumes when it is among the best there.

Source: Li et al. 2018, "A system for massively parallel hyperparameter tuning" (arXiv 1810.05934), algorithm 2. Unlike
the variant that stops trials, it does not lose a good trial that was late, or continue a bad one that was first.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush, heappushpop

from windlass.tune.schedulers.async_hyperband import check_rungs, draw_bracket, milestones
from windlass.tune.schedulers.fifo import FIFO, check_mode
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.trial import Metrics, Trial

__all__ = ["PromotionASHA"]


class PromotionASHA(FIFO):
    """Scheduler that pauses each trial at each rung and promotes the best.

    A free slot goes to the best trial that may be promoted, else to a new trial.

    Of the n trials that reached a rung the best floor(n / reduction_factor) may continue to the next. Highest rungs
    first. A trial that may continue when it reports does so without a pause. NaN ranks lowest. When no more trials come
    and none can be promoted, the paused ones are stopped.

    Args:
        time_attr: measure of progress; must not decrease.
        max_t: the last rung; a trial ends when it reaches it.
        grace_period: the first rung.
        reduction_factor: from one rung to the next, and the share that continues.
        brackets: bracket s begins s rungs later; a trial's is drawn, those with more rungs more often.
    """

    needs_saving = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
    ) -> None:
        check_rungs(max_t, grace_period, reduction_factor, brackets)
        check_mode(mode)
        super().__init__()
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.max_t, self.grace_period, self.reduction_factor = max_t, grace_period, reduction_factor
        self.brackets = brackets
        self._brackets = [self._rungs_of(s) for s in range(brackets)]
        self._ladder = sorted((rung for rungs in self._brackets for rung in rungs), key=lambda rung: -rung.level)
        self._bracket_of: dict[str, int] = {}
        self._index_of: dict[str, int] = {}  # next rung of each trial

    def _rungs_of(self, bracket: int) -> list[_Rung]:
        below = milestones(self.max_t, self.grace_period, self.reduction_factor, bracket)
        marks = [*(mark for mark in reversed(below) if mark < self.max_t), self.max_t]
        return [_Rung(mark, index, self.reduction_factor) for index, mark in enumerate(marks)]

    @property
    def times(self) -> tuple[str, ...]:
        """Names that the first report must have; without the time, all results would be skipped."""
        return (self.time_attr,)

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_add(sweep, trial)
        sizes = [len(rungs) for rungs in self._brackets]
        self._bracket_of.setdefault(trial.id, draw_bracket(sweep, trial, sizes))
        self._index_of.setdefault(trial.id, 0)

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        if self.time_attr not in result or self.metric_in(sweep) not in result:
            return CONTINUE
        time, score = result[self.time_attr], self.score(sweep, result)
        if time >= self.max_t:
            self._forget(trial)
            return Verdict(SchedulerDecision.STOP, f"it has run for {self.max_t:g} {self.time_attr}")
        rungs = self._brackets[self._bracket_of[trial.id]]
        while time >= (rung := rungs[self._index_of[trial.id]]).mark:
            if trial.id not in rung:
                rung.add(trial, score)
            if self._next() is not trial:
                why = f"its rung at {self.time_attr} {rung.mark:g}"
                return Verdict(
                    SchedulerDecision.PAUSE, f"it waits at {why} until it is among the best 1/{rung.factor:g} there"
                )
            self._promote(trial)
        return CONTINUE

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        super().on_complete(sweep, trial, result)
        self._forget(trial)

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_remove(sweep, trial)
        self._forget(trial)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return an interrupted trial, else the best promotable one on the highest rung, else a new one."""
        pending = [trial for trial in sweep.pending.values() if sweep.may_start(trial)]
        for trial in pending:
            if trial.iteration:
                return trial
        promotable = self._next(sweep)
        if promotable is not None:
            self._promote(promotable)
            return promotable
        if not (sweep.pending or sweep.running or sweep.is_searching or self._next()):
            for trial in list(sweep.paused.values()):
                sweep.stop(trial, "there are no more trials, so it cannot become one of the best of its rung")
                self._forget(trial)
        return pending[0] if pending else None

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the next rung, if `time_attr` counts reports."""
        if self.time_attr != "training_iteration" or trial.id not in self._bracket_of:
            return 1
        rung = self._brackets[self._bracket_of[trial.id]][self._index_of[trial.id]]
        return max(math.ceil(rung.mark) - trial.iteration, 1)

    def _next(self, sweep: ScheduledSweep | None = None) -> Trial | None:
        """Return the trial to promote next; given a sweep, only one that is paused and fits a free slot."""
        for rung in self._ladder:
            for trial in sorted(rung.promotable.values(), key=rung.rank, reverse=True) if rung.promotable else ():
                if sweep is None or (trial.id in sweep.paused and sweep.may_start(trial)):
                    return trial
        return None

    def _promote(self, trial: Trial) -> None:
        index = self._index_of[trial.id]
        self._brackets[self._bracket_of[trial.id]][index].release(trial)
        self._index_of[trial.id] = index + 1

    def _forget(self, trial: Trial) -> None:
        bracket = self._bracket_of.pop(trial.id, None)
        index = self._index_of.pop(trial.id, 0)
        if bracket is not None:
            self._brackets[bracket][index].release(trial)


class _Rung:
    """Scores of the trials that have reached a rung, split into the best floor(n / factor) and the rest.

    Adding a score takes O(log n).

    Attributes:
        level: 0 is the lowest.
        promotable: trials among the best that have not been promoted yet.
    """

    def __init__(self, mark: float, level: int, factor: float) -> None:
        self.mark, self.level, self.factor = mark, level, factor
        self.promotable: dict[str, Trial] = {}
        self._trials: dict[str, tuple[Trial, float]] = {}  # trials that wait here
        self._best: list[tuple[float, int, str]] = []
        self._rest: list[tuple[float, int, str]] = []  # negated

    def __contains__(self, trial: str) -> bool:
        return trial in self._trials

    def rank(self, trial: Trial) -> tuple[float, int]:
        """Return the sort key for a trial: its score, and for equal scores earlier trials first."""
        return self._trials[trial.id][1], -trial.number

    def add(self, trial: Trial, score: float) -> None:
        """Add a trial that has reached the rung; this or another trial may become promotable."""
        score = -math.inf if math.isnan(score) else score
        self._trials[trial.id] = trial, score
        entry = score, -trial.number, trial.id
        if self._best and entry > self._best[0]:
            out = heappushpop(self._best, entry)
            self._enter(trial.id)
            self._leave(out)
        else:
            heappush(self._rest, (-score, trial.number, trial.id))
        if len(self._best) < math.floor((len(self._best) + len(self._rest)) / self.factor):
            negated, number, name = heappop(self._rest)
            heappush(self._best, (-negated, -number, name))
            self._enter(name)

    def release(self, trial: Trial) -> None:
        """Release a trial that has been promoted or has ended; its score still counts."""
        self.promotable.pop(trial.id, None)
        self._trials.pop(trial.id, None)

    def _enter(self, name: str) -> None:
        if name in self._trials:
            self.promotable[name] = self._trials[name][0]

    def _leave(self, entry: tuple[float, int, str]) -> None:
        self.promotable.pop(entry[2], None)
        heappush(self._rest, (-entry[0], -entry[1], entry[2]))
