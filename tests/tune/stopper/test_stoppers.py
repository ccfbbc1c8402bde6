from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    MetricStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)
from windlass.tune.stopper import Stopper as RayPathStopper
from windlass.tune.stopper.limits import metrics_of
from windlass.tune.stopper.protocol import stopper_settings
from windlass.tune.stopper.registry import as_stopper, stopper_from, without_timeouts


def above_two(trial_id: str, result: dict[str, Any]) -> bool:
    return bool(result["m"] > 2)


class Mine(Stopper):
    def __init__(self, bound: float) -> None:
        self.bound = bound

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["m"] > self.bound)

    def stop_all(self) -> bool:
        return False

    def settings(self) -> dict[str, object]:
        return {"bound": self.bound}


def answers(stopper: Any, values: list[Any], trial: str = "t") -> list[bool]:
    return [stopper(trial, {"m": value, "training_iteration": n}) for n, value in enumerate(values, 1)]


def test_bounds_on_metrics() -> None:
    stopper = as_stopper({"m": 3, "training_iteration": 4})
    assert stopper is not None
    assert answers(stopper, [1, 2.9, 3]) == [False, False, True]
    assert answers(stopper, [0, 0, 0, 0], "other") == [False, False, False, True]
    assert not stopper("t", {"unknown": 5})
    assert not stopper.stop_all()


def test_a_bound_on_what_is_no_number_is_told() -> None:
    with pytest.raises(UsageError, match="stop has a bound on 'm', but a trial reported 'high'"):
        MetricStopper({"m": 1})("t", {"m": "high"})


def test_credit_is_what_can_be_reported_before_a_stop() -> None:
    stopper = MetricStopper({"training_iteration": 10})
    assert stopper.credit("t") == 9
    answers(stopper, [0] * 4)
    assert stopper.credit("t") == 5
    assert MetricStopper({"m": 3}).credit("t") == 1
    maximum = MaximumIterationStopper(5)
    answers(maximum, [0])
    assert maximum.credit("t") == 3
    assert CombinedStopper(maximum, NoopStopper()).credit("t") == 3
    assert CombinedStopper(maximum, Mine(1)).credit("t") == 1
    for count in range(1, 30):
        one = MaximumIterationStopper(count)
        said: list[bool] = []
        while not said or not said[-1]:
            ahead = one.credit("t")
            said += [one("t", {}) for _ in range(ahead)]
            assert not any(said[:-1])


def test_the_number_of_results_is_counted_per_trial() -> None:
    stopper = MaximumIterationStopper(2)
    assert answers(stopper, [0, 0]) == [False, True]
    assert answers(stopper, [0], "other") == [False]


def test_combined_stoppers_ask_until_one_says_so() -> None:
    inner = MaximumIterationStopper(2)
    stopper = CombinedStopper(FunctionStopper(above_two), inner)
    assert answers(stopper, [3, 0]) == [True, False]
    assert answers(stopper, [0]) == [True]


def test_a_timeout_counts_while_it_is_asked() -> None:
    clock = FakeClock()
    stopper = TimeoutStopper(timedelta(seconds=10), clock=clock)
    clock.advance(1000)
    assert not stopper.stop_all()
    clock.advance(9)
    assert not stopper.stop_all()
    assert not stopper("t", {})
    clock.advance(1)
    assert stopper.stop_all()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"m": 1}, MetricStopper), (above_two, FunctionStopper), (Mine(1), Mine), (lambda t, r: False, FunctionStopper),
        ([{"m": 1}, above_two], CombinedStopper), (NoopStopper(), NoopStopper),
    ],
)  # fmt: skip
def test_stop_takes_many_forms(given: Any, kind: type) -> None:
    assert type(as_stopper(given)) is kind


def test_nothing_stops_nothing() -> None:
    assert as_stopper(None) is None
    assert as_stopper({}) is None
    assert RayPathStopper is Stopper


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_stopper(3), "invalid stop condition 3"),
        (lambda: as_stopper(NoopStopper), "stop is the class NoopStopper"),
        (lambda: as_stopper({"a": {"b": 3}}), "stop: the bound of `a` is {'b': 3}, not a number"),
        (lambda: TimeoutStopper("10"), "invalid timeout of a sweep '10'"),  # type: ignore[arg-type]
        (lambda: TimeoutStopper(0), "invalid timeout of a sweep 0"),
        (lambda: MaximumIterationStopper(0), "MaximumIterationStopper has max_iter=0"),
        (lambda: MaximumIterationStopper("3"), "MaximumIterationStopper has max_iter='3'"),  # type: ignore[arg-type]
        (lambda: TrialPlateauStopper("m", num_results=0), "TrialPlateauStopper has num_results=0"),
        (lambda: TrialPlateauStopper("m", mode="best"), "TrialPlateauStopper has mode='best'"),
        (lambda: as_stopper(lambda result: True), "too many positional arguments"),
        (lambda: TrialPlateauStopper("m", metric_threshold=0.0), "has metric_threshold=0.0 but mode=None"),
        (lambda: ExperimentPlateauStopper("m", mode="best"), "ExperimentPlateauStopper has mode='best'"),
        (lambda: ExperimentPlateauStopper("m", top=1), "ExperimentPlateauStopper has top=1"),
        (lambda: ExperimentPlateauStopper("m", top=float("nan")), "ExperimentPlateauStopper has top=nan"),  # type: ignore[arg-type]
        (lambda: ExperimentPlateauStopper("m", patience=-1), "ExperimentPlateauStopper has patience=-1"),
        (lambda: ExperimentPlateauStopper("m", std=0), "ExperimentPlateauStopper has std=0"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert message in caught.value.message
    assert caught.value.code == "invalid-value"


def test_a_function_that_fails_names_itself_and_what_was_reported() -> None:
    stopper = FunctionStopper(lambda trial_id, result: result["acuracy"] > 0.9)
    with pytest.raises(UsageError) as caught:
        stopper("00003", {"accuracy": 0.5, "loss": 1.0})
    assert caught.value.code == "user-code-failed"
    assert "<lambda> failed on a report of trial 00003: KeyError('acuracy')" in caught.value.message
    assert "`accuracy`, `loss`" in caught.value.hint


def test_attributes_of_other_peoples_stoppers_are_theirs() -> None:
    theirs = Mine(1)
    theirs.metrics = "loss"  # type: ignore[attr-defined]
    assert metrics_of(theirs) == ()
    stopper = CombinedStopper(theirs, TrialPlateauStopper("m"), MetricStopper({"n": 1}))
    assert stopper.metrics == ("m", "n") == metrics_of(stopper)


def test_time_budgets_are_taken_out_of_a_stopper() -> None:
    assert without_timeouts(TimeoutStopper(5)) == (None, 5.0)
    left, seconds = without_timeouts(as_stopper([TimeoutStopper(9), [TimeoutStopper(5), {"m": 1}]]))
    assert seconds == 5.0
    assert left is not None
    assert stopper_settings(left)["stoppers"][0]["stoppers"] == [{"type": "MetricStopper", "bounds": {"m": 1}}]
    assert without_timeouts(mine := Mine(1)) == (mine, 0.0)
    assert without_timeouts(None) == (None, 0.0)


def test_odd_values_are_no_plateau() -> None:
    assert not any(answers(TrialPlateauStopper("m"), [1, 1, None, 1, float("nan"), 1, 1]))
    stopper = ExperimentPlateauStopper("m", top=3)
    assert not any(answers(stopper, [float("nan"), 1, None, 1]))
    assert answers(stopper, [1]) == [True]


@pytest.mark.parametrize(
    "stopper",
    [
        MetricStopper({"m": 3}), MaximumIterationStopper(3), FunctionStopper(above_two), TimeoutStopper(5), NoopStopper(),
        CombinedStopper(MaximumIterationStopper(3), Mine(2)), TrialPlateauStopper("m", 0.1, metric_threshold=1, mode="max"),
        ExperimentPlateauStopper("m", top=4), Mine(2.5),
    ],
)  # fmt: skip
def test_a_stopper_is_made_again_from_its_settings(stopper: Any) -> None:
    settings = json.loads(json.dumps(stopper_settings(stopper)))
    again = stopper_from(settings)
    assert stopper_settings(again) == settings
    values = [0, 3, 2, 2, 2, 2, 1, 4]
    assert answers(again, values) == answers(stopper, values)


def test_a_lambda_must_be_given_again() -> None:
    settings = stopper_settings(FunctionStopper(lambda trial_id, result: False))
    with pytest.raises(PreconditionError) as caught:
        stopper_from(settings)
    assert "<lambda>" in caught.value.message
    assert caught.value.code == "module-not-found"


# ------------------------------------------------------------------------------------------------ beside Ray Tune

PAIRS: list[tuple[str, dict[str, Any]]] = [
    ("MaximumIterationStopper", {"max_iter": 3}),
    ("TrialPlateauStopper", {"metric": "m"}),
    ("TrialPlateauStopper", {"metric": "m", "std": 0.3, "num_results": 2, "grace_period": 5}),
    ("TrialPlateauStopper", {"metric": "m", "std": 0.5, "metric_threshold": 1.2, "mode": "max"}),
    ("TrialPlateauStopper", {"metric": "m", "std": 0.5, "metric_threshold": 0.8, "mode": "min"}),
    ("ExperimentPlateauStopper", {"metric": "m", "std": 0.2, "top": 3}),
    ("ExperimentPlateauStopper", {"metric": "m", "std": 0.1, "top": 4, "mode": "max", "patience": 3}),
    ("ExperimentPlateauStopper", {"metric": "m", "std": 0.05, "top": 12, "patience": 1}),
    ("NoopStopper", {}),
]


@pytest.mark.parametrize(("name", "arguments"), PAIRS)
def test_decisions_are_those_of_ray(name: str, arguments: dict[str, Any], need: Any) -> None:
    need("ray")
    import ray.tune.stopper as rays

    import windlass.tune.stopper as ours

    for seed in range(60):
        chance = random.Random(seed)
        one, other = getattr(ours, name)(**arguments), getattr(rays, name)(**arguments)
        spread = chance.choice([0.02, 0.1, 0.3, 1.0])
        for _ in range(60):
            trial = f"t{chance.randrange(3)}"
            result = {"m": round(1 + spread * (chance.random() - 0.5), chance.choice([1, 2, 6]))}
            assert one(trial, dict(result)) == other(trial, dict(result))
            assert one.stop_all() == other.stop_all()


def test_combined_decisions_are_those_of_ray(need: Any) -> None:
    need("ray")
    import ray.tune.stopper as rays

    import windlass.tune.stopper as ours

    for seed in range(40):
        made = [
            module.CombinedStopper(
                module.FunctionStopper(lambda trial, result: result["m"] > 1.4),
                module.TrialPlateauStopper("m", std=0.1, num_results=3),
                module.MaximumIterationStopper(7),
                module.ExperimentPlateauStopper("m", std=0.02, top=5),
            )
            for module in (ours, rays)
        ]
        chance = random.Random(seed)
        for _ in range(60):
            trial, result = f"t{chance.randrange(4)}", {"m": 1 + 0.5 * chance.random()}
            said = [(stopper(trial, dict(result)), stopper.stop_all()) for stopper in made]
            assert said[0] == said[1]


def test_a_bound_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        as_stopper({"loss": float("nan")})
    assert caught.value.code == "invalid-value"
    assert "`loss` is nan" in str(caught.value)
