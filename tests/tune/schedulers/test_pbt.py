"""Population based training: who saves, who becomes a clone, how configurations change, what is refused."""

from __future__ import annotations

import random
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import PopulationBasedTraining, SchedulerDecision
from windlass.tune.schedulers.population_based.explore import explore, tag_of
from windlass.tune.space.primitives import choice, grid_search, sample_from, uniform
from windlass.tune.trial import Trial, TrialStatus


def result(iteration: int, score: float = 0.0) -> dict[str, float]:
    return {"training_iteration": iteration, "score": score}


def pbt(**arguments: Any) -> PopulationBasedTraining:
    plain = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"lr": [1, 2, 4, 8]},
    }
    return PopulationBasedTraining(**{**plain, **arguments})


def started(sweep: FakeSweep, scheduler: PopulationBasedTraining, num: int, **config: Any) -> list[Trial]:
    trials = [sweep.add(dict(config)) for _ in range(num)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
        sweep.start(trial)
    return trials


def still(seed: int = 0) -> FakeSweep:
    """All trials are there from the beginning."""
    sweep = FakeSweep(seed=seed)
    sweep.is_searching = False
    return sweep


def meet(sweep: FakeSweep, scheduler: PopulationBasedTraining, trials: list[Trial], iteration: int) -> None:
    """All report for the first time, the worst first: there is nobody yet who has saved."""
    for trial in trials:
        sweep.report(scheduler, trial, result(iteration, trial.number))


def test_the_worst_takes_over_from_one_of_the_best_that_has_saved() -> None:
    sweep, scheduler = still(), pbt(resample_probability=0.0)
    trials = started(sweep, scheduler, 4, lr=4, other="kept")
    for trial in trials:
        assert sweep.report(scheduler, trial, result(1)).decision is SchedulerDecision.CONTINUE
    for trial in trials:
        trial.config["lr"] = 2**trial.number
    meet(sweep, scheduler, trials, 2)
    sweep.acts.clear()
    assert sweep.report(scheduler, trials[3], result(4, 3.0)).decision is SchedulerDecision.CONTINUE
    verdict = sweep.report(scheduler, trials[0], result(4, 0.0))
    assert sweep.acts == [("save", "00003"), ("exploit", "00000", "00003")]
    assert verdict.decision is SchedulerDecision.NOOP
    assert trials[0].config in ({"lr": 4, "other": "kept"}, {"lr": 8, "other": "kept"})  # 8 is the last of the list
    assert trials[0].tag == f"0@perturbed[lr={trials[0].config['lr']}]"
    assert trials[0].assigned["lr"] == trials[0].config["lr"]
    assert trials[3].config["lr"] == 8


def test_nobody_to_clone_has_saved_so_the_worst_goes_on() -> None:
    sweep, scheduler = still(), pbt()
    trials = started(sweep, scheduler, 2, lr=4)
    sweep.report(scheduler, trials[0], result(2, 0.0))
    trials[1].status = TrialStatus.RUNNING
    sweep.report(scheduler, trials[1], result(2, -1.0))
    assert sweep.acts == []


def test_a_trial_gives_way_to_one_that_is_further_behind() -> None:
    sweep, scheduler = still(), pbt()
    (first,) = started(sweep, scheduler, 1, lr=4)
    second = sweep.add({"lr": 1})
    scheduler.on_add(sweep, second)
    verdict = sweep.report(scheduler, first, result(2))
    assert (verdict.decision, verdict.why) == (
        SchedulerDecision.PAUSE,
        "it is paused for a trial that is further behind",
    )
    assert scheduler.choose(sweep) is second
    sweep.start(second)
    sweep.report(scheduler, second, result(2))
    assert scheduler.choose(sweep) is first


def test_in_step_all_wait_and_the_best_save_before_the_worst_take_over() -> None:
    sweep, scheduler = still(), pbt(synch=True)
    trials = started(sweep, scheduler, 4, lr=4)
    for trial in trials[:3]:
        assert sweep.report(scheduler, trial, result(2, -trial.number)).decision is SchedulerDecision.PAUSE
    assert scheduler.choose(sweep) is None
    verdict = sweep.report(scheduler, trials[3], result(2, 5.0))
    assert verdict.why == "all trials reached training_iteration 2; they continue in turn"
    assert sweep.acts == [("save", "00003"), ("exploit", "00002", "00003")]
    assert scheduler.choose(sweep) is trials[0]


def test_in_step_the_end_of_the_last_one_wakes_the_others() -> None:
    """In Ray Tune they wait for ever."""
    sweep, scheduler = still(), pbt(synch=True)
    trials = started(sweep, scheduler, 3, lr=4)
    for trial in trials[:2]:
        sweep.report(scheduler, trial, result(2, trial.number))
    sweep.complete(scheduler, trials[2], result(1))
    assert scheduler.choose(sweep) is not None
    assert ("exploit", "00000", "00001") in sweep.acts


def test_the_burn_in_period_leaves_everybody_alone() -> None:
    sweep, scheduler = still(), pbt(burn_in_period=6)
    trials = started(sweep, scheduler, 2, lr=4)
    assert scheduler.credit(sweep, trials[0]) == 6
    for iteration in (2, 4, 5):
        for trial in trials:
            sweep.report(scheduler, trial, result(iteration, trial.number))
    assert sweep.acts == []


def test_credit_reaches_to_the_next_perturbation() -> None:
    rng = Random(0)
    for seed in range(20):
        sweep = still(seed)
        scheduler = pbt(perturbation_interval=rng.choice([1, 3, 2.5]), synch=rng.random() < 0.5)
        trials = started(sweep, scheduler, 5, lr=4)
        for _ in range(60):
            running = list(sweep.running.values())
            if running:
                trial = rng.choice(running)
                for left in range(scheduler.credit(sweep, trial), 0, -1):
                    verdict = sweep.report(scheduler, trial, result(trial.iteration + 1, rng.random()))
                    assert left == 1 or verdict.decision is SchedulerDecision.CONTINUE
            chosen = scheduler.choose(sweep)
            if chosen is not None:
                sweep.start(chosen)
        assert max(trial.iteration for trial in trials) > 5


def test_what_a_configuration_lacks_is_drawn_and_shown() -> None:
    scheduler = pbt(hyperparam_mutations={"lr": uniform(0, 1), "deep": {"size": [4, 8], "p": random.random}})
    configs = []
    for _ in range(2):
        sweep = FakeSweep(seed=5)
        (trial,) = started(sweep, scheduler, 1, deep={"size": 7})
        assert 0 <= trial.config["lr"] < 1
        assert trial.config["deep"]["size"] == 7
        assert set(trial.assigned) == {"lr", "deep/p"}
        configs.append(trial.config)
    assert configs[0] == configs[1]  # a function that draws by itself is seeded by the sweep, too


def test_values_change_as_ray_changes_them() -> None:
    seen: dict[str, Counter[Any]] = {name: Counter() for name in ("list", "int", "bool", "float")}
    mutations = {"list": [1, 2, 3], "int": choice([10, 20]), "bool": choice([True, False]), "float": uniform(0, 1)}
    config = {"list": 3, "int": 10, "bool": True, "float": 0.5, "rest": [1]}
    for seed in range(300):
        new, done = explore(config, mutations, Random(seed), 0.25, (1.2, 0.8))
        assert new["rest"] == [1]
        assert new["rest"] is not config["rest"]
        assert set(done) == set(mutations)
        for name, counter in seen.items():
            counter[new[name]] += 1
    assert set(seen["list"]) == {1, 2, 3}  # 1 by resampling alone
    assert set(seen["int"]) == {8, 10, 12, 20}
    assert set(seen["bool"]) == {True, False}
    assert {0.4, 0.6} < set(seen["float"])
    assert 30 < 300 - seen["float"][0.4] - seen["float"][0.6] < 120
    shifted = {explore({"list": 1}, {"list": [1, 2]}, Random(seed), 0.0, (1,))[1]["list"] for seed in range(20)}
    assert shifted == {"shift left (noop)", "shift right"}


def test_a_custom_explore_function_has_the_last_word() -> None:
    sweep, scheduler = still(), pbt(custom_explore_fn=lambda config: {**config, "lr": -1})
    trials = started(sweep, scheduler, 2, lr=4)
    meet(sweep, scheduler, trials, 2)
    for trial in reversed(trials):
        sweep.report(scheduler, trial, result(4, trial.number))
    assert trials[0].config == {"lr": -1}
    bad = pbt(custom_explore_fn=lambda _: None)
    sweep = still()
    trials = started(sweep, bad, 2, lr=4)
    meet(sweep, bad, trials, 2)
    sweep.report(bad, trials[1], result(4, 1.0))
    with pytest.raises(UsageError, match="custom_explore_fn returned None"):
        sweep.report(bad, trials[0], result(4, 0.0))


def test_tags_are_short() -> None:
    assert tag_of(3, {"lr": 0.012345678, "deep": {"kind": "a"}}) == "3@perturbed[kind=a,lr=0.01235]"


def test_missing_attributes_are_refused_unless_allowed() -> None:
    sweep, scheduler = still(), pbt()
    (trial,) = started(sweep, scheduler, 1, lr=4)
    with pytest.raises(
        UsageError, match="did not report 'score', which PopulationBasedTraining needs in every report"
    ) as caught:
        scheduler.on_result(sweep, trial, {"training_iteration": 1, "loss": 1.0})
    assert caught.value.hint == "report it, or pass require_attrs=False; the report has loss, training_iteration"
    lenient = pbt(require_attrs=False)
    (trial,) = started(sweep, lenient, 1, lr=4)
    assert lenient.on_result(sweep, trial, {"training_iteration": 1}).decision is SchedulerDecision.CONTINUE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hyperparam_mutations": {}}, "has neither hyperparam_mutations nor custom_explore_fn"),
        ({"quantile_fraction": 0.6}, "quantile_fraction is 0.6"),
        ({"perturbation_interval": 0}, "perturbation_interval is 0"),
        ({"perturbation_factors": ()}, "perturbation_factors is empty"),
        ({"hyperparam_mutations": {"a": {"b": 3}}}, "hyperparam_mutations\\['a/b'\\] is 3"),
        ({"hyperparam_mutations": {"a": []}}, "hyperparam_mutations\\['a'\\] is empty"),
        ({"hyperparam_mutations": {"a": grid_search([1])}}, "hyperparam_mutations\\['a'\\] is a grid"),
        ({"hyperparam_mutations": {"a": sample_from(lambda _: 1)}}, "hyperparam_mutations\\['a'\\] is a sample_from"),
        ({"mode": "up"}, "invalid mode 'up'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        pbt(**arguments)
    assert caught.value.code == "invalid-value"
    assert caught.value.hint


@pytest.mark.parametrize("synch", [True, False])
def test_while_more_trials_come_each_gets_its_turn_before_any_goes_on(synch: bool) -> None:
    sweep, scheduler = FakeSweep(), pbt(synch=synch)
    (first,) = started(sweep, scheduler, 1, lr=4)
    assert sweep.report(scheduler, first, result(2)).decision is SchedulerDecision.PAUSE
    assert scheduler.choose(sweep) is None  # room for a new one
    second = sweep.add({"lr": 1})
    scheduler.on_add(sweep, second)
    assert scheduler.choose(sweep) is second
    sweep.start(second)
    sweep.report(scheduler, second, result(2, 1.0))
    sweep.is_searching = False
    assert scheduler.choose(sweep) is first
