"""Resources that change while trials run: who gets what, and what is refused. Arithmetic: see the differential tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import (
    DistributeResources,
    DistributeResourcesToTopJob,
    MedianStoppingRule,
    ResourceChangingScheduler,
    SchedulerDecision,
)
from windlass.tune.trial import Resources, Trial, TrialStatus

ONE = Resources(bundles=({"CPU": 1.0, "TPU": 4.0},))


def result(iteration: int, score: float = 0.0) -> dict[str, float]:
    return {"training_iteration": iteration, "score": score}


def started(sweep: FakeSweep, scheduler: ResourceChangingScheduler, num: int) -> list[Trial]:
    trials = [sweep.add(resources=ONE) for _ in range(num)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
        sweep.start(trial)
    return trials


def test_free_cpus_are_shared_and_other_resources_stay() -> None:
    sweep, scheduler = FakeSweep(), ResourceChangingScheduler()
    sweep.capacity = {"CPU": 8.0}
    trials = started(sweep, scheduler, 3)
    verdict = sweep.report(scheduler, trials[0], result(1))
    assert verdict.decision is SchedulerDecision.NOOP
    assert trials[0].resources.bundles == ({"CPU": 3.0, "TPU": 4.0},)
    assert trials[0].status is TrialStatus.PAUSED
    assert scheduler.choose(sweep) is trials[0]
    assert sweep.report(scheduler, trials[1], result(1)).decision is SchedulerDecision.NOOP
    assert sweep.report(scheduler, trials[2], result(1)).decision is SchedulerDecision.NOOP
    assert sweep.report(scheduler, trials[2], result(2)).decision is SchedulerDecision.CONTINUE


def test_the_best_gets_everything() -> None:
    sweep = FakeSweep()
    scheduler = ResourceChangingScheduler(
        resources_allocation_function=DistributeResourcesToTopJob(reserve_resources={"CPU": 2})
    )
    sweep.capacity = {"CPU": 9.0}
    trials = started(sweep, scheduler, 2)
    scheduler.resources_allocation_function = None
    for trial in trials:
        sweep.report(scheduler, trial, result(1, trial.number))
    scheduler.resources_allocation_function = DistributeResourcesToTopJob(reserve_resources={"CPU": 2})
    assert sweep.report(scheduler, trials[0], result(2, 0.5)).decision is SchedulerDecision.CONTINUE
    sweep.report(scheduler, trials[1], result(2, 1.0))
    assert trials[1].resources.bundles == ({"CPU": 6.0, "TPU": 4.0},)


def test_a_function_may_return_any_shape_or_nothing() -> None:
    shapes = iter(
        [None, Resources(bundles=({"CPU": 1.0, "TPU": 4.0, "GPU": 0.0},)), Resources(bundles=({"GPU": 1.0},))]
    )
    sweep, scheduler = FakeSweep(), ResourceChangingScheduler(resources_allocation_function=lambda *_: next(shapes))
    (trial,) = started(sweep, scheduler, 1)
    assert sweep.report(scheduler, trial, result(1)).decision is SchedulerDecision.CONTINUE
    assert sweep.report(scheduler, trial, result(2)).decision is SchedulerDecision.CONTINUE  # the same but for a zero
    verdict = sweep.report(scheduler, trial, result(3))
    assert verdict.decision is SchedulerDecision.NOOP
    assert trial.resources.bundles == ({"GPU": 1.0},)


def test_an_unknown_capacity_changes_nothing() -> None:
    sweep, scheduler = FakeSweep(), ResourceChangingScheduler()
    (trial,) = started(sweep, scheduler, 1)
    assert sweep.report(scheduler, trial, result(1)).decision is SchedulerDecision.CONTINUE


def test_trials_must_begin_alike() -> None:
    sweep, scheduler = FakeSweep(), ResourceChangingScheduler()
    started(sweep, scheduler, 1)
    with pytest.raises(UsageError, match="trial 00001 needs") as caught:
        scheduler.on_add(sweep, sweep.add(resources=Resources(bundles=({"CPU": 2.0},))))
    assert caught.value.code == "invalid-value"


def test_metric_and_mode_are_those_of_the_base() -> None:
    scheduler = ResourceChangingScheduler(MedianStoppingRule())
    scheduler.metric, scheduler.mode = "score", "min"
    assert (scheduler.base_scheduler.metric, scheduler.base_scheduler.mode) == ("score", "min")
    assert scheduler.metric == "score"


@pytest.mark.parametrize(("unit", "message"), [({"CPU": -1}, "increase_by is"), ({"TPU": 1}, "increase_by is")])
def test_a_unit_that_makes_no_sense_is_refused(unit: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DistributeResources(increase_by=unit)


def test_several_bundles_need_add_bundles() -> None:
    sweep, scheduler = FakeSweep(), ResourceChangingScheduler()
    sweep.capacity = {"CPU": 8.0}
    trial = sweep.add(resources=Resources(bundles=({"CPU": 1.0}, {"CPU": 1.0})))
    scheduler.on_add(sweep, trial)
    sweep.start(trial)
    with pytest.raises(UsageError, match="each trial has 2 bundles"):
        sweep.report(scheduler, trial, result(1))


def test_whole_bundles_leave_an_empty_head_alone() -> None:
    sweep = FakeSweep()
    scheduler = ResourceChangingScheduler(resources_allocation_function=DistributeResources(add_bundles=True))
    sweep.capacity = {"CPU": 6.0}
    trial = sweep.add(resources=Resources(bundles=({}, {"CPU": 2.0})))
    scheduler.on_add(sweep, trial)
    sweep.start(trial)
    sweep.report(scheduler, trial, result(1))
    assert trial.resources.bundles == ({}, {"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0})
