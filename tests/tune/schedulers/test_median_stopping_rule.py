"""The median rule: examples, the running means, and that a result stays cheap."""

from __future__ import annotations

import math
from random import Random
from statistics import mean, median

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import MedianStoppingRule, SchedulerDecision
from windlass.tune.schedulers.median_stopping_rule import RunningMean
from windlass.tune.trial import Trial


def result(iteration: int, score: float) -> dict[str, float]:
    return {"training_iteration": iteration, "score": score}


def rule(**arguments: object) -> MedianStoppingRule:
    return MedianStoppingRule(time_attr="training_iteration", **{"grace_period": 1.0, **arguments})  # type: ignore[arg-type]


def still() -> FakeSweep:
    """All trials are there from the beginning."""
    sweep = FakeSweep()
    sweep.is_searching = False
    return sweep


def started(sweep: FakeSweep, scheduler: MedianStoppingRule, num: int) -> list[Trial]:
    trials = [sweep.add() for _ in range(num)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
        sweep.start(trial)
    return trials


def test_a_trial_below_the_median_of_the_others_means_is_stopped() -> None:
    sweep, scheduler = still(), rule()
    *others, trial = started(sweep, scheduler, 4)
    for other, score in zip(others, [1.0, 2.0, 9.0], strict=True):
        sweep.report(scheduler, other, result(1, 0.0))
        sweep.report(scheduler, other, result(2, 2 * score))
    sweep.report(scheduler, trial, result(1, 1.5))
    verdict = sweep.report(scheduler, trial, result(2, 1.75))
    assert verdict.decision is SchedulerDecision.STOP
    assert verdict.why == "its best, 1.75, is worse than the median 2 of 3 others at training_iteration 2"


def test_with_too_few_others_it_gives_way_once_per_slice() -> None:
    sweep, scheduler = still(), rule(min_time_slice=2)
    trial, waiting = started(sweep, scheduler, 2)
    assert sweep.report(scheduler, trial, result(1, 0.0)).decision is SchedulerDecision.CONTINUE  # nobody waits
    sweep.pause(waiting, "asked")
    assert sweep.report(scheduler, trial, result(2, 0.0)).decision is SchedulerDecision.PAUSE
    sweep.start(trial)
    assert sweep.report(scheduler, trial, result(3, 0.0)).decision is SchedulerDecision.CONTINUE
    assert sweep.report(scheduler, trial, result(5, 0.0)).decision is SchedulerDecision.PAUSE


def test_a_soft_stop_pauses_once() -> None:
    sweep, scheduler = still(), rule(hard_stop=False)
    assert scheduler.needs_saving
    *others, trial = started(sweep, scheduler, 4)
    for other in others:
        sweep.report(scheduler, other, result(1, 1.0))
    assert sweep.report(scheduler, trial, result(1, 0.0)).decision is SchedulerDecision.PAUSE
    sweep.start(trial)
    assert sweep.report(scheduler, trial, result(2, -1.0)).decision is SchedulerDecision.CONTINUE


def test_credit_reaches_to_the_end_of_the_grace_period() -> None:
    sweep, scheduler = still(), rule(grace_period=7.5)
    (trial,) = started(sweep, scheduler, 1)
    assert scheduler.credit(sweep, trial) == 8
    assert MedianStoppingRule().credit(sweep, trial) == 1


def test_running_means_are_exact() -> None:
    rng = Random(0)
    for _ in range(50):
        running, values = RunningMean(), []
        for time in range(40):
            values.append(rng.choice([rng.gauss(0, 1), 1e16, -1e16, 1e-9, 0.1]))
            running.add(time, values[-1])
        for time in range(40):
            assert running.at(time) == math.fsum(values[: time + 1]) / (time + 1)
            assert math.isclose(running.at(time), mean(values[: time + 1]), rel_tol=1e-12, abs_tol=1e-12)
        assert math.isnan(running.at(-1))


def test_a_mean_with_an_infinite_value_is_no_number_from_there_on() -> None:
    running = RunningMean()
    for time, value in enumerate([1.0, math.inf, 1.0]):
        running.add(time, value)
    assert running.at(0) == 1.0
    assert math.isnan(running.at(1))
    assert math.isnan(running.at(2))


def test_a_trial_that_begins_anew_counts_anew() -> None:
    sweep, scheduler = still(), rule(min_samples_required=1)
    other, trial = started(sweep, scheduler, 2)
    for iteration in (1, 2, 3):
        sweep.report(scheduler, other, result(iteration, 100.0))
    for iteration in (1, 2, 3):
        sweep.report(scheduler, other, result(iteration, 1.0))
    verdict = sweep.report(scheduler, trial, result(3, 0.5))
    assert verdict.why.startswith("its best, 0.5, is worse than the median 1 of 1 others")


def test_a_result_at_a_known_time_looks_at_no_other_trial() -> None:
    """Ray rescans every result of every trial; here the means at a time that is asked for again are kept."""
    sweep, scheduler = still(), rule()
    rng = Random(0)
    for trial in started(sweep, scheduler, 3):
        for iteration in (1, 2):
            sweep.report(scheduler, trial, result(iteration, rng.random()))
    kept, means = scheduler._by_time._kept, scheduler._means
    assert sorted(kept) == [1, 2]
    for trial in started(sweep, scheduler, 200):
        verdict = sweep.report(scheduler, trial, result(1, rng.random()))
        expected = median(one.at(1) for name, one in means.items() if name != trial.id)
        assert (verdict.decision is SchedulerDecision.STOP) == (means[trial.id].at(1) < expected)
        assert kept[1] == sorted(one.at(1) for one in means.values())


def test_a_bad_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid mode 'mean'"):
        rule(mode="mean")
