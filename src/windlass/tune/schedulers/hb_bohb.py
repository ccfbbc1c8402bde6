"""HyperBand for a searcher that learns from each budget: the scheduler for BOHB.

Source: Falkner et al. 2018, "BOHB: robust and efficient hyperparameter optimization at scale" (arXiv 1807.01774).
"""

from __future__ import annotations

from windlass.tune.schedulers.hyperband import HyperBandScheduler
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.trial import Metrics, Trial, TrialStatus

__all__ = ["HyperBandForBOHB"]


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand that starts with the largest bracket; trials wait at milestones even in a bracket that is not full.

    So the searcher gets results at the smallest budget before it is asked for more trials. A result at a milestone
    holds the budget, as `hyperband_info/budget`. When nothing runs and no trial comes, brackets continue with the
    trials they have.
    """

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        bracket = self._report(sweep, trial, result)
        if bracket.may_continue(trial):
            return CONTINUE
        result["hyperband_info/budget"] = bracket.milestone
        others = (one.trial for one in bracket.live.values() if one.trial is not trial)
        if not bracket.is_filled or any(other.status is not TrialStatus.PAUSED for other in others):
            what = "until its bracket is full and all of it are there"
            return Verdict(SchedulerDecision.PAUSE, f"it waits at {self.time_attr} {bracket.milestone} {what}")
        return self._process(sweep, bracket, trial)

    def _next_s(self, num_made: int) -> int:
        return self._num_brackets - num_made - 1

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        _, band, index = self._places[trial.id]
        return band, index, self.turn(trial)
