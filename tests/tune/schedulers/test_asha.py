"""ASHA: the form that stops trials by hand-made examples, the form that promotes them against the paper."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import AsyncHyperBandScheduler, SchedulerDecision
from windlass.tune.schedulers.asha_promotion import PromotionASHA
from windlass.tune.schedulers.async_hyperband import RunningQuantile
from windlass.tune.schedulers.fifo import ENDLESS
from windlass.tune.schedulers.registry import ASHA
from windlass.tune.trial import Trial, TrialStatus


def result(iteration: int, score: float) -> dict[str, float]:
    return {"training_iteration": iteration, "score": score}


def started(sweep: FakeSweep, scheduler: AsyncHyperBandScheduler | PromotionASHA, num: int) -> list[Trial]:
    trials = []
    for _ in range(num):
        trial = sweep.add()
        scheduler.on_add(sweep, trial)
        sweep.start(trial)
        trials.append(trial)
    return trials


# --------------------------------------------------------------------------------------------------------- stopping


def test_the_first_at_a_milestone_goes_on_and_a_worse_one_is_stopped_with_its_reason() -> None:
    sweep, scheduler = FakeSweep(), AsyncHyperBandScheduler(max_t=16, reduction_factor=4)
    first, second = started(sweep, scheduler, 2)
    assert sweep.report(scheduler, first, result(1, 0.5)).decision is SchedulerDecision.CONTINUE
    verdict = sweep.report(scheduler, second, result(1, 0.25))
    assert verdict.decision is SchedulerDecision.STOP
    assert verdict.why == "0.25 is below the cutoff 0.5 at training_iteration 1"


def test_a_metric_to_be_minimised_is_told_as_it_is() -> None:
    sweep = FakeSweep()
    scheduler = AsyncHyperBandScheduler(metric="score", mode="min", max_t=16)
    first, second = started(sweep, scheduler, 2)
    sweep.report(scheduler, first, result(1, 0.5))
    assert sweep.report(scheduler, second, result(1, 0.75)).why == (
        "0.75 is above the cutoff 0.5 at training_iteration 1"
    )


def test_max_t_stops() -> None:
    sweep, scheduler = FakeSweep(), AsyncHyperBandScheduler(max_t=4)
    (trial,) = started(sweep, scheduler, 1)
    verdict = sweep.report(scheduler, trial, result(4, 1.0))
    assert (verdict.decision, verdict.why) == (SchedulerDecision.STOP, "it has run for 4 training_iteration")


def test_credit_reaches_to_the_next_milestone_and_every_report_before_it_continues() -> None:
    rng = Random(3)
    for seed in range(60):
        sweep = FakeSweep(seed=seed)
        scheduler = AsyncHyperBandScheduler(
            max_t=rng.choice([9, 30]), grace_period=rng.choice([1, 2]), reduction_factor=rng.choice([2, 3]),
            brackets=2, stop_last_trials=rng.random() < 0.5,
        )  # fmt: skip
        trials = started(sweep, scheduler, 8)
        for _ in range(200):
            running = [trial for trial in trials if trial.status is TrialStatus.RUNNING]
            if not running:
                break
            trial = rng.choice(running)
            for left in range(min(scheduler.credit(sweep, trial), 40), 0, -1):
                lacks = rng.random() < 0.1
                report = (
                    {"training_iteration": trial.iteration + 1}
                    if lacks
                    else result(trial.iteration + 1, rng.gauss(0, 1))
                )
                verdict = sweep.report(scheduler, trial, report)
                assert left == 1 or verdict.decision is SchedulerDecision.CONTINUE
                if verdict.decision is SchedulerDecision.STOP:
                    break


@pytest.mark.parametrize(
    ("is_stopped_at_max_t", "expected"), [(True, {1: 2, 3: 6, 9: 18}), (False, {1: 2, 3: 6, 9: 18, 27: ENDLESS})]
)
def test_credit_is_what_is_left_to_the_next_milestone(is_stopped_at_max_t: bool, expected: dict[int, int]) -> None:
    sweep = FakeSweep()
    scheduler = AsyncHyperBandScheduler(max_t=27, reduction_factor=3, stop_last_trials=is_stopped_at_max_t)
    (trial,) = started(sweep, scheduler, 1)
    assert scheduler.credit(sweep, trial) == 1
    for time in range(1, max(expected) + 1):
        sweep.report(scheduler, trial, result(time, 1.0))
        if time in expected:
            assert scheduler.credit(sweep, trial) == expected[time]
    assert AsyncHyperBandScheduler(time_attr="seconds").credit(sweep, trial) == 1


def test_brackets_are_drawn_by_the_sweep_and_a_trial_keeps_its_own() -> None:
    scheduler, sweep = AsyncHyperBandScheduler(max_t=81, reduction_factor=3, brackets=4), FakeSweep(seed=1)
    trials = started(sweep, scheduler, 400)
    drawn = [scheduler._bracket_of[trial.id] for trial in trials]
    weights = [math.e**-s for s in range(4)]
    for s, weight in enumerate(weights):
        assert abs(drawn.count(s) / 400 - weight / sum(weights)) < 0.08
    sweep.fail(scheduler, trials[7], is_final=False)
    assert scheduler._bracket_of[trials[7].id] == drawn[7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_t": 0}, "max_t is 0"),
        ({"max_t": -1}, "max_t is -1"),
        ({"max_t": 5, "grace_period": 6}, "grace_period is 6"),
        ({"grace_period": 0}, "grace_period is 0"),
        ({"reduction_factor": 1}, "reduction_factor is 1"),
        ({"brackets": 0}, "brackets is 0"),
        ({"mode": "most"}, "invalid mode 'most'"),
    ],
)
@pytest.mark.parametrize("kind", ["stop", "promote"])
def test_bad_arguments_are_named(kind: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ASHA(kind, **arguments)
    assert caught.value.code == "invalid-value"


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid kind 'prommote' of ASHA"):
        ASHA("prommote")


def test_a_score_that_is_no_number_is_refused() -> None:
    sweep, scheduler = FakeSweep(), AsyncHyperBandScheduler()
    (trial,) = started(sweep, scheduler, 1)
    with pytest.raises(UsageError, match="'score' is None, which is not a number"):
        scheduler.on_result(sweep, trial, {"training_iteration": 1, "score": None})


# -------------------------------------------------------------------------------------------------------- promoting


def test_nobody_is_promoted_before_eta_trials_came() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=9, reduction_factor=3)
    trials = started(sweep, scheduler, 3)
    for trial in trials[:2]:
        assert sweep.report(scheduler, trial, result(1, 1.0)).decision is SchedulerDecision.PAUSE
    verdict = sweep.report(scheduler, trials[2], result(1, 0.0))
    assert verdict.why == "it waits at its rung at training_iteration 1 until it is among the best 1/3 there"
    assert scheduler.choose(sweep) is trials[0]  # floor(3 / 3) = 1, and of two that are equal the older one
    assert scheduler.choose(sweep) is None


def test_a_late_but_good_trial_takes_the_place_of_one_that_was_not_yet_promoted() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=9, reduction_factor=3)
    trials = started(sweep, scheduler, 4)
    for trial, score in zip(trials, [0.3, 0.1, 0.2, 0.9], strict=True):
        verdict = sweep.report(scheduler, trial, result(1, score))
    assert verdict.decision is SchedulerDecision.CONTINUE  # its turn at once: no pause
    assert scheduler.choose(sweep) is None


class Paper:
    """Algorithm 2, written down plainly: scan rungs from the top, take the best of the top 1/eta not yet promoted."""

    def __init__(self, eta: int, max_t: int) -> None:
        self.eta, self.max_t = eta, max_t
        self.marks: list[int] = [mark for mark in (eta**k for k in range(10)) if mark < max_t]
        self.rungs: list[list[tuple[float, int]]] = [[] for _ in self.marks]
        self.promoted: list[set[int]] = [set() for _ in self.marks]
        self.at: Counter[int] = Counter()

    def job(self) -> tuple[int, int] | None:
        """The rung and the trial to promote next."""
        for index in reversed(range(len(self.rungs))):
            best = sorted((-score, number) for score, number in self.rungs[index])[: len(self.rungs[index]) // self.eta]
            left = [number for _, number in best if number not in self.promoted[index]]
            if left:
                return index, left[0]
        return None

    def promote(self, job: tuple[int, int]) -> None:
        self.promoted[job[0]].add(job[1])

    def time_of(self, number: int) -> int:
        """How far a trial runs next."""
        return [*self.marks, self.max_t][self.at[number]]

    def report(self, number: int, score: float) -> None:
        self.rungs[self.at[number]].append((score, number))
        self.at[number] += 1


def test_promotions_are_those_of_the_paper() -> None:
    for seed in range(150):
        check_promotions(seed)


def check_promotions(seed: int) -> None:
    rng = Random(seed)
    paper = Paper(rng.choice([2, 3, 4]), rng.choice([4, 9, 27]))
    sweep, scheduler = FakeSweep(seed=seed), PromotionASHA(max_t=paper.max_t, reduction_factor=paper.eta)
    for _ in range(200):
        if len(sweep.running) < 3:
            if not give_a_slot(sweep, scheduler, paper):
                break
            continue
        trial = rng.choice(list(sweep.running.values()))
        time, score = paper.time_of(trial.number), rng.randrange(8) / 8
        verdict = sweep.report(scheduler, trial, result(time, score))
        if time == paper.max_t:
            assert verdict.decision is SchedulerDecision.STOP, f"seed {seed}"
            continue
        paper.report(trial.number, score)
        job = paper.job()
        is_its_turn = job is not None and job[1] == trial.number
        expected = SchedulerDecision.CONTINUE if is_its_turn else SchedulerDecision.PAUSE
        assert verdict.decision is expected, f"seed {seed}"
        if job is not None and is_its_turn:
            paper.promote(job)


def give_a_slot(sweep: FakeSweep, scheduler: PromotionASHA, paper: Paper) -> bool:
    """To the trial that the paper promotes, or else to a new one; False when there are 40."""
    job = paper.job()
    if job is not None:
        paper.promote(job)
    elif len(sweep.trials) < 40:
        scheduler.on_add(sweep, sweep.add())
    expected = job[1] if job is not None else next((trial.number for trial in sweep.pending.values()), None)
    chosen = scheduler.choose(sweep)
    assert (None if chosen is None else chosen.number) == expected
    if chosen is not None:
        sweep.start(chosen)
    return chosen is not None


def test_an_interrupted_trial_goes_first_and_is_not_counted_twice() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=9, reduction_factor=3)
    trials = started(sweep, scheduler, 3)
    sweep.report(scheduler, trials[0], result(1, 0.5))
    sweep.move(trials[0], TrialStatus.PENDING)  # its checkpoint was lost with its node
    assert scheduler.choose(sweep) is trials[0]
    sweep.start(trials[0])
    assert sweep.report(scheduler, trials[0], result(2, 0.7)).decision is SchedulerDecision.PAUSE
    sweep.report(scheduler, trials[1], result(1, 0.1))
    assert scheduler.choose(sweep) is None


def test_nan_ranks_lowest_and_a_trial_that_is_over_is_not_promoted() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=9, reduction_factor=2)
    trials = started(sweep, scheduler, 4)
    for trial, score in zip(trials, [math.nan, 0.3, math.nan, 0.2], strict=True):
        sweep.report(scheduler, trial, result(1, score))
    assert trials[1].status is TrialStatus.RUNNING  # promoted when it came
    sweep.remove(scheduler, trials[3])
    assert scheduler.choose(sweep) is None


def test_what_waits_for_trials_that_never_come_is_over() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=9, reduction_factor=3)
    trials = started(sweep, scheduler, 2)
    for trial in trials:
        sweep.report(scheduler, trial, result(1, 0.5))
    assert scheduler.choose(sweep) is None
    assert all(trial.status is TrialStatus.PAUSED for trial in trials)
    sweep.is_searching = False
    assert scheduler.choose(sweep) is None
    assert all(trial.status is TrialStatus.TERMINATED for trial in trials)


def test_a_time_beyond_several_rungs_counts_at_each() -> None:
    sweep, scheduler = FakeSweep(), PromotionASHA(max_t=27, reduction_factor=3)
    trials = started(sweep, scheduler, 4)
    for trial in trials[:3]:
        sweep.report(scheduler, trial, result(1, 0.0))
    assert sweep.report(scheduler, trials[3], result(4, 1.0)).why.startswith(
        "it waits at its rung at training_iteration 3"
    )


# -------------------------------------------------------------------------------------------------------- quantiles


def test_a_running_quantile_is_that_of_numpy() -> None:
    import numpy as np

    rng = Random(0)
    for _ in range(60):
        share = rng.choice([0.0, 0.5, 0.75, 2 / 3, 1 / 3, rng.random()])
        running, values = RunningQuantile(share), []
        for _ in range(rng.randrange(1, 60)):
            value = rng.choice([rng.gauss(0, 1), float(rng.randrange(4)), math.nan])
            running.add(value)
            values.append(value)
            expected = math.nan if np.isnan(values).all() else float(np.nanquantile(values, share))
            assert running.value == expected or (math.isnan(running.value) and math.isnan(expected))


def test_an_unknown_argument_of_asha_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        ASHA(max_tt=3)
    assert (caught.value.code, caught.value.hint) == ("unknown-option", "did you mean `max_t`?")
