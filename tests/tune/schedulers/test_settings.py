"""A scheduler is made again from its JSON form; names, arguments and pairings that make no sense are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune import schedulers
from windlass.tune.schedulers import (
    FIFO,
    PB2,
    AsyncHyperBandScheduler,
    DistributeResourcesToTopJob,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    SweepScheduler,
    create_scheduler,
)
from windlass.tune.schedulers.asha_promotion import PromotionASHA
from windlass.tune.schedulers.registry import check_pairing, from_settings
from windlass.tune.space.primitives import choice, loguniform, qrandint


def explore(config: dict[str, Any]) -> dict[str, Any]:
    return config


class Mine(FIFO):
    """A user's scheduler."""

    def __init__(self, patience: int = 3) -> None:
        super().__init__()
        self.patience = patience


EACH: list[Any] = [
    FIFO(),
    AsyncHyperBandScheduler(max_t=81, brackets=2, stop_last_trials=False),
    PromotionASHA(grace_period=2),
    HyperBandScheduler(max_t=27, metric="loss", mode="min"),
    HyperBandForBOHB(max_t=9),
    MedianStoppingRule(grace_period=2.5, hard_stop=False),
    PopulationBasedTraining(
        hyperparam_mutations={
            "lr": loguniform(1e-5, 1.0), "deep": {"layers": [1, 2], "size": qrandint(4, 64, 4)}, "kind": choice(["a", "b"]),
            "drawn": sum,
        },
        custom_explore_fn=explore,
        synch=True,
    ),
    PopulationBasedTrainingReplay(config={"lr": 1.0}, changes=[(3, {"lr": 2.0})]),
    PB2(hyperparam_bounds={"lr": (0.0, 1.0), "deep": {"size": [1, 9]}}),
    ResourceChangingScheduler(
        AsyncHyperBandScheduler(metric="score", mode="max"), DistributeResourcesToTopJob(increase_by={"CPU": 2})
    ),
    Mine(patience=7),
]  # fmt: skip


@pytest.mark.parametrize("scheduler", EACH, ids=lambda one: type(one).__name__)
def test_it_is_made_again_from_its_json(scheduler: SweepScheduler) -> None:
    told: Mapping[str, Any] = json.loads(json.dumps(scheduler.settings()))
    again = from_settings(told)
    assert type(again) is type(scheduler)
    assert json.loads(json.dumps(again.settings())) == told


def test_spaces_and_code_come_back_as_they_were() -> None:
    again = from_settings(json.loads(json.dumps(EACH[6].settings())))
    assert again.hyperparam_mutations == EACH[6].hyperparam_mutations
    assert again.custom_explore_fn is explore
    assert again.perturbation_factors == (1.2, 0.8)
    assert from_settings(EACH[-1].settings()).patience == 7


def test_code_made_on_the_fly_must_be_given_again() -> None:
    scheduler = PopulationBasedTraining(custom_explore_fn=lambda config: config)
    with pytest.raises(PreconditionError) as caught:
        from_settings(scheduler.settings())
    assert caught.value.code == "module-not-found"
    assert "test_settings:test_code_made_on_the_fly" in str(caught.value)


def test_a_scheduler_without_settings_must_be_given_again() -> None:
    with pytest.raises(PreconditionError, match="the scheduler of this sweep, Odd, did not record how"):
        from_settings({"type": "Odd"})


@pytest.mark.parametrize(
    "name",
    ["fifo", "async_hyperband", "asynchyperband", "median_stopping_rule", "medianstopping", "hyperband", "hb_bohb",
     "resource_changing", "ASHA"],
)  # fmt: skip
def test_short_names_are_those_of_ray(name: str) -> None:
    create_scheduler(name)


def test_arguments_for_another_scheduler_are_left_out_and_unknown_ones_refused() -> None:
    assert isinstance(create_scheduler("fifo", max_t=9, synch=True), FIFO)
    pbt = create_scheduler("pbt", max_t=9, hyperparam_mutations={"a": [1]}, synch=True)
    assert isinstance(pbt, PopulationBasedTraining)
    with pytest.raises(UsageError) as caught:
        create_scheduler("pbt", hyperparam_mutation={"a": [1]})
    assert (caught.value.code, caught.value.hint) == ("unknown-option", "did you mean `hyperparam_mutations`?")
    with pytest.raises(UsageError) as caught:
        create_scheduler("hyperbant")
    assert (caught.value.code, caught.value.hint) == ("unknown-name", "did you mean 'hyperband'?")


def test_population_based_training_goes_with_no_searcher_that_learns() -> None:
    pbt = PopulationBasedTraining(metric="score", mode="max", hyperparam_mutations={"a": [1]})
    check_pairing(pbt, searcher="random search", learns=False, metric=None)
    for scheduler in (pbt, ResourceChangingScheduler(pbt)):
        with pytest.raises(UsageError, match="cannot be used with TPE") as caught:
            check_pairing(scheduler, searcher="TPE", learns=True, metric=None)
        assert caught.value.code == "searcher-option"
    check_pairing(AsyncHyperBandScheduler(), searcher="TPE", learns=True, metric="score")


def test_a_scheduler_that_compares_needs_a_metric() -> None:
    check_pairing(FIFO(), searcher="grid", learns=False, metric=None)
    for scheduler in (HyperBandScheduler(), ResourceChangingScheduler(HyperBandScheduler())):
        with pytest.raises(UsageError, match="HyperBandScheduler compares trials, but no metric is set") as caught:
            check_pairing(scheduler, searcher="grid", learns=False, metric=None)
        assert caught.value.code == "unknown-metric"


def test_metric_and_mode_are_taken_once() -> None:
    scheduler = AsyncHyperBandScheduler(metric="a", mode="max")
    assert not scheduler.set_search_properties("b", None)
    assert not scheduler.set_search_properties(None, "min")
    assert AsyncHyperBandScheduler().set_search_properties("b", "min")


def test_every_public_name_is_there() -> None:
    for name in schedulers.__all__:
        assert getattr(schedulers, name) is not None
    with pytest.raises(AttributeError):
        schedulers.__getattr__("Hyperbant")


def test_a_plain_sweep_loads_no_library() -> None:
    code = (
        "import sys; from windlass.tune import ASHA; "
        "from windlass.tune.schedulers import FIFO, PopulationBasedTraining, PB2; "
        "print([name for name in ('numpy', 'scipy', 'ray', 'pandas', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_fifo_takes_pending_trials_first_and_paused_ones_in_the_order_of_their_adding() -> None:
    sweep, scheduler = FakeSweep(), FIFO()
    trials = [sweep.add() for _ in range(4)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
        sweep.start(trial)
    for trial in (trials[2], trials[0], trials[3]):
        sweep.pause(trial, "asked")
    late = sweep.add()
    scheduler.on_add(sweep, late)
    assert scheduler.choose(sweep) is late
    sweep.misfits.add(late.id)
    assert scheduler.choose(sweep) is trials[0]
    assert scheduler.credit(sweep, late) == 1000
    assert Mine().credit(sweep, late) == 1
