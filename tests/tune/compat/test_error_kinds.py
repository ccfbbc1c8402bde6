"""What Ray Tune refuses with a ValueError or a TypeError windlass refuses with an error that is one too."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.core.errors import WindlassError


def names(package: str) -> Any:
    """The two packages with the same names."""
    found = SimpleNamespace(tune=importlib.import_module(f"{package}.tune" if package == "ray" else "windlass.tune"))
    for name in (
        "schedulers",
        "schedulers.pb2",
        "search",
        "stopper",
        "search.sample",
        "search.optuna",
        "search.variant_generator",
    ):
        setattr(found, name.rpartition(".")[2], importlib.import_module(f"{package}.tune.{name}"))
    return found


def trains(config: dict[str, Any]) -> None:
    """Never called: each case is refused before."""


def fits(api: Any, **settings: Any) -> Any:
    space = settings.pop("space", {"x": 1})
    run = api.tune.RunConfig(**settings.pop("run", {}))
    return api.tune.Tuner(trains, param_space=space, tune_config=api.tune.TuneConfig(**settings), run_config=run).fit()


def pbt(api: Any, **settings: Any) -> Any:
    return api.schedulers.PopulationBasedTraining(**{"hyperparam_mutations": {"lr": [1, 2]}, **settings})


CASES: dict[str, Callable[[Any], Any]] = {
    "unknown scheduler": lambda api: api.schedulers.create_scheduler("ahsa"),
    "unknown searcher": lambda api: api.search.create_searcher("optunaa"),
    "quantile_fraction": lambda api: pbt(api, quantile_fraction=0.6),
    "perturbation_interval": lambda api: pbt(api, perturbation_interval=0),
    "mutations of sample_from": lambda api: pbt(api, hyperparam_mutations={"lr": api.tune.sample_from(lambda spec: 1)}),
    "mutations of the wrong kind": lambda api: pbt(api, hyperparam_mutations={"lr": 3}),
    "pb2 bounds the wrong way round": lambda api: api.pb2.PB2(hyperparam_bounds={"lr": [2, 1]}),
    "policy that does not exist": lambda api: api.schedulers.PopulationBasedTrainingReplay("/nowhere/policy.txt"),
    "plateau mode": lambda api: api.stopper.ExperimentPlateauStopper("loss", mode="best"),
    "plateau top": lambda api: api.stopper.ExperimentPlateauStopper("loss", top=0),
    "plateau patience": lambda api: api.stopper.ExperimentPlateauStopper("loss", patience=-1),
    "plateau std": lambda api: api.stopper.ExperimentPlateauStopper("loss", std=-1.0),
    "threshold without mode": lambda api: api.stopper.TrialPlateauStopper("loss", metric_threshold=1.0),
    "timeout": lambda api: api.stopper.TimeoutStopper("soon"),
    "loguniform from 0": lambda api: api.tune.loguniform(0, 1),
    "quniform off the steps": lambda api: api.tune.quniform(0.1, 1, 0.3),
    "qrandint without a value": lambda api: api.tune.qrandint(1, 2, 5).sample(),
    "sample_from of two arguments": lambda api: api.tune.sample_from(lambda one, two: 1).sample(),
    "points that are no list": lambda api: api.optuna.OptunaSearch(
        {"x": api.tune.uniform(0, 1)}, metric="loss", mode="min", points_to_evaluate={"x": 1}
    ),
    "points and rewards": lambda api: api.optuna.OptunaSearch(
        {"x": __import__("optuna").distributions.FloatDistribution(0, 1)}, metric="loss", mode="min",
        points_to_evaluate=[{"x": 1}], evaluated_rewards=[1, 2],
    ),
    "with_parameters of a number": lambda api: api.tune.with_parameters(3, x=1),
    "with_resources of a number": lambda api: api.tune.with_resources(3, {"cpu": 1}),
    "resources of the wrong kind": lambda api: api.tune.with_resources(trains, 3),
    "registering a number": lambda api: api.tune.register_trainable("three", 3),
    "mode": lambda api: fits(api, metric="loss", mode="best"),
    "space that is no dictionary": lambda api: fits(api, space=3),
    "stop": lambda api: fits(api, run={"stop": 3}),
    "stop list": lambda api: fits(api, run={"stop": [3]}),
    "fail_fast and max_failures": lambda api: fits(
        api, run={"failure_config": api.tune.FailureConfig(fail_fast=True, max_failures=2)}
    ),
    "fail_fast": lambda api: fits(api, run={"failure_config": api.tune.FailureConfig(fail_fast="quick")}),
    "two limits": lambda api: fits(
        api, max_concurrent_trials=2,
        search_alg=api.search.ConcurrencyLimiter(api.optuna.OptunaSearch(metric="a", mode="min"), max_concurrent=1),
    ),
    "two metrics": lambda api: fits(
        api, metric="loss", mode="min", scheduler=api.schedulers.ASHAScheduler(metric="loss", mode="min")
    ),
    "two modes": lambda api: fits(api, metric="loss", mode="min", scheduler=api.schedulers.ASHAScheduler(mode="min")),
    "frequency for a function": lambda api: fits(
        api, run={"checkpoint_config": api.tune.CheckpointConfig(checkpoint_frequency=2)}
    ),
    "at_end for a function": lambda api: fits(
        api, run={"checkpoint_config": api.tune.CheckpointConfig(checkpoint_at_end=True)}
    ),
    "unknown argument": lambda api: api.tune.TuneConfig(num_sample=3),
    "unknown argument of RunConfig": lambda api: api.tune.RunConfig(nmae="x"),
}  # fmt: skip
LATE: dict[str, Callable[[Any], Any]] = {
    "two optuna modes, no metric": lambda api: api.optuna.OptunaSearch(mode=["min", "max"]),
    "a point that the space lacks": lambda api: fits(
        api, space={"x": api.tune.uniform(0, 1)},
        search_alg=api.search.BasicVariantGenerator(points_to_evaluate=[{"y": 1}]),
    ),
    "max_concurrent_trials": lambda api: fits(api, max_concurrent_trials=-1),
    "no metric for ASHA": lambda api: fits(api, scheduler=api.schedulers.ASHAScheduler()),
    "PBT with search": lambda api: fits(
        api, metric="loss", mode="min", scheduler=pbt(api), search_alg=api.optuna.OptunaSearch()
    ),
}  # fmt: skip
"""What Ray refuses as a ValueError when it has begun; windlass does it before."""


def test_a_mistake_is_the_same_kind_of_error(need: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("ray")
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setattr("ray.tune.tune._ray_auto_init", lambda **settings: None)  # all of these are refused without it
    for name, case in CASES.items():
        theirs, ours = error_of(case, "ray"), error_of(case, "windlass")
        assert isinstance(ours, ValueError if isinstance(theirs, ValueError) else TypeError), name
        assert isinstance(ours, WindlassError), name
        assert ours.hint, name


def error_of(case: Callable[[Any], Any], package: str) -> Exception:
    """The ValueError or TypeError that a mistake raises in a package."""
    with pytest.raises((ValueError, TypeError)) as caught:
        case(names(package))
    return caught.value


@pytest.mark.parametrize("name", LATE)
def test_what_ray_refuses_late_is_a_value_error_too(name: str, home: Path) -> None:
    with pytest.raises(ValueError) as ours:
        LATE[name](names("windlass"))
    assert isinstance(ours.value, WindlassError)
    assert ours.value.hint
