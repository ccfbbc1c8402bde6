"""Spaces written with `sample.Float(...)` and searchers driven without a sweep: the same calls on Ray Tune and here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from windlass import tune
from windlass.tune.search import ConcurrencyLimiter, Searcher
from windlass.tune.search.optuna import OptunaSearch

PACKAGES = ("ray", "windlass")
DOMAINS: dict[str, Callable[[Any], Any]] = {
    "Float": lambda s: s.Float(-4.2, 8.3),
    "Float.uniform": lambda s: s.Float(-4.2, 8.3).uniform(),
    "Float.loguniform": lambda s: s.Float(1e-4, 1e-1).loguniform(),
    "Float.normal": lambda s: s.Float(None, None).normal(1.0, 2.0),
    "Float.quantized": lambda s: s.Float(0.0, 1.0).quantized(0.25),
    "Float.loguniform.quantized": lambda s: s.Float(1e-4, 1e-1).loguniform().quantized(5e-5),
    "Float.normal.quantized": lambda s: s.Float(None, None).normal(0.0, 1.0).quantized(0.5),
    "Integer": lambda s: s.Integer(-3, 12),
    "Integer.uniform": lambda s: s.Integer(-3, 12).uniform(),
    "Integer.loguniform": lambda s: s.Integer(1, 64).loguniform(),
    "Integer.quantized": lambda s: s.Integer(2, 9).quantized(2),
    "Categorical": lambda s: s.Categorical([1, "a"]),
    "Categorical.uniform": lambda s: s.Categorical([1, "a"]).uniform(),
    "Categorical.grid": lambda s: s.Categorical([1, "a"]).grid(),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "two samplers": lambda s: s.Float(1, 2).normal().uniform(),
    "two samplers, log": lambda s: s.Float(1, 2).loguniform().uniform(),
    "log below 0": lambda s: s.Float(-4.2, 8.3).loguniform(),
    "log without bounds": lambda s: s.Float(None, None).loguniform(),
    "uniform without bounds": lambda s: s.Float(None, None).uniform(),
    "bounds off the steps": lambda s: s.Float(1e-4, 1e-1).quantized(5e-4),
    "integers, log below 0": lambda s: s.Integer(-3, 12).loguniform(),
}


def sample_of(package: str) -> Any:
    return importlib.import_module(f"{package}.tune.search.sample")


def words(sampler: Any) -> tuple[Any, ...]:
    """A sampler by the name of its kind in the module, whichever subclass it is."""
    names = ("Quantized", "LogUniform", "Uniform", "Normal", "Grid")
    kind = next(name for name in names if any(one.__name__ == name for one in type(sampler).__mro__))
    values = [getattr(sampler, name) for name in ("mean", "sd", "q") if hasattr(sampler, name)]
    return kind, *values, *(words(sampler.sampler) if kind == "Quantized" else ())


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_draws_as_ray_s(name: str, need: Any) -> None:
    need("ray")
    theirs, ours = (DOMAINS[name](sample_of(package)) for package in PACKAGES)
    assert words(ours.get_sampler()) == words(theirs.get_sampler())
    if name == "Categorical.grid":
        return
    values = ours.sample(size=300)
    assert all(theirs.is_valid(value) or "normal" in name for value in values)
    assert len({type(value) for value in values} - {type(theirs.cast(values[0])), type(values[0]), str, int}) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_ray_refuses_is_refused(name: str, need: Any) -> None:
    need("ray")
    for package in PACKAGES:
        with pytest.raises(ValueError):
            REFUSED[name](sample_of(package))


def test_a_float_without_bounds_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="has no bounds to draw between"):
        tune.search.sample.Float(None, None).sample()  # type: ignore[attr-defined]


def space_of(package: str) -> Any:
    api = importlib.import_module(f"{package}.tune" if package == "ray" else "windlass.tune")
    return {
        "a": api.choice([2, 3, 4]),
        "b": {"x": api.qrandint(0, 6, 2), "y": 4},
        "z": api.loguniform(1e-4, 1e-2),
        "q": api.quniform(0, 1, 0.25),
        "i": api.lograndint(1, 9),
        "r": api.randint(1, 9),
    }


def test_a_space_becomes_the_distributions_that_ray_makes(need: Any) -> None:
    need("ray")
    theirs, ours = (
        importlib.import_module(f"{package}.tune.search.optuna").OptunaSearch.convert_search_space(space_of(package))
        for package in PACKAGES
    )
    assert ours == theirs


@pytest.mark.parametrize("space", [{"g": tune.grid_search([0, 1])}, {"n": tune.randn(0, 1)}])
def test_what_optuna_cannot_search_is_not_converted(space: Any) -> None:
    with pytest.raises(ValueError) as caught:
        OptunaSearch.convert_search_space(space)
    assert caught.value.code == "space-not-searchable"  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_searcher_is_driven_without_a_sweep(package: str, need: Any) -> None:
    need("ray")
    kind = importlib.import_module(f"{package}.tune.search.optuna").OptunaSearch
    searcher = kind(kind.convert_search_space(space_of(package)), metric="z", mode="min", seed=3)
    for name in ("one", "two", "three"):
        config = searcher.suggest(name)
        assert config["a"] in (2, 3, 4)
        assert config["b"]["x"] in (0, 2, 4, 6)
        searcher.on_trial_result(name, {"z": config["z"], "training_iteration": 1})
        searcher.on_trial_complete(name, {"z": config["z"]}, error=False)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_searcher_without_a_space_takes_one_once(package: str, need: Any) -> None:
    need("ray")
    kind = importlib.import_module(f"{package}.tune.search.optuna").OptunaSearch
    searcher = kind()
    with pytest.raises((ValueError, RuntimeError)):
        kind(metric="z", mode="min").suggest("one")
    assert searcher.set_search_properties("z", "min", space_of(package))
    assert not searcher.set_search_properties("z", "min", space_of(package))
    assert 1e-4 <= searcher.suggest("one")["z"] <= 1e-2


def test_a_limiter_holds_back_and_lets_go() -> None:
    class Counting(Searcher):
        number = 0

        def suggest(self, trial_id: str) -> Any:
            self.number += 1
            return {"x": self.number}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...

    counting: Any = Counting(metric="loss", mode="min")
    limiter = ConcurrencyLimiter(counting, max_concurrent=2)
    assert [limiter.suggest(name) for name in "abc"] == [{"x": 1}, {"x": 2}, None]
    limiter.on_trial_complete("a", {"loss": 1.0})
    assert limiter.suggest("c") == {"x": 3}


def test_a_searcher_that_was_driven_by_hand_serves_a_sweep(tmp_path: Any) -> None:
    searcher = OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss", mode="min")
    config: Any = searcher.suggest("one")
    assert 0 <= config["x"] <= 1
    results = tune.Tuner(
        lambda config: tune.report({"loss": config["x"]}),
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=3, executor="in-process"),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert len(results) == 3
