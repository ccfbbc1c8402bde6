"""Searcher objects of the installed Ray Tune, and two written as its plug-ins are, search a `param_space` of windlass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import here, quiet
from windlass import tune
from windlass.tune.search import Objectives
from windlass.tune.search.registry import as_searcher
from windlass.tune.search.searcher import ray_space

GOAL = Objectives(metrics=("loss",), is_max=(False,))
DRAWN: dict[str, tuple[Any, ...]] = {
    "uniform": (1, 9),
    "quniform": (0, 1, 0.25),
    "loguniform": (1e-5, 1e-1),
    "qloguniform": (0.5, 8, 0.5),
    "randn": (1, 2),
    "qrandn": (1, 2, 0.5),
    "randint": (1, 9),
    "qrandint": (2, 8, 2),
    "lograndint": (1, 64),
    "qlograndint": (2, 64, 2),
    "choice": (["a", "b"],),
}


@pytest.fixture(autouse=True)
def _ray(need: Any) -> None:
    need("ray")


def shape(domain: Any) -> Any:
    """A domain of Ray's as plain values."""
    sampler = domain.get_sampler()
    inner = getattr(sampler, "sampler", sampler)
    values = {name: value for name, value in vars(domain).items() if name != "sampler"}
    return type(domain), type(inner), getattr(sampler, "q", None), getattr(inner, "mean", None), values


@pytest.mark.parametrize("name", DRAWN)
def test_a_domain_becomes_the_one_that_ray_makes(name: str) -> None:
    from ray import tune as ray_tune

    ours, theirs = (getattr(module, name)(*DRAWN[name]) for module in (tune, ray_tune))
    assert shape(ray_space({"a": [ours]})["a"][0]) == shape(theirs)


def test_choices_of_spaces_grids_and_functions_are_translated() -> None:
    from ray.tune.search import sample
    from ray.tune.search.variant_generator import parse_spec_vars

    space = {
        "kind": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}, "adam"]),
        "grid": tune.grid_search([1, 2]),
        "made": tune.sample_from(lambda spec: 3),
        "fixed": {"deep": [1, "two"]},
    }
    made = ray_space(space)
    _, drawn, grids = parse_spec_vars(made)
    assert {path for path, _ in drawn} == {("kind",), ("made",)}
    assert [path for path, _ in grids] == [("grid",)]
    assert isinstance(made["kind"].categories[0]["momentum"], sample.Float)
    assert made["kind"].categories[1] == "adam"
    assert isinstance(made["made"], sample.Function)
    assert made["fixed"] == space["fixed"]


def whole_spaces() -> Any:
    """A searcher like HyperOptSearch: it keeps the whole space, and answers with all of it, constants too."""
    import copy

    from ray.tune.search import Searcher, sample
    from ray.tune.search.variant_generator import assign_value, parse_spec_vars

    class Whole(Searcher):
        def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
            super().__init__(metric=metric, mode=mode)
            self.space: Any = None
            self.told: list[Any] = []

        def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
            if self.space is not None:
                return False
            self._metric, self._mode, self.space, self.spec = metric, mode, self.convert_search_space(config), spec
            return True

        @staticmethod
        def convert_search_space(spec: Any) -> Any:
            _, drawn, grids = parse_spec_vars(spec)
            if grids:
                raise ValueError("Grid search parameters cannot be automatically converted.")
            return copy.deepcopy(spec) if drawn else {}

        def suggest(self, trial_id: str) -> Any:
            if not self.space:
                raise RuntimeError("no search space has been defined")
            answer = copy.deepcopy(self.space)
            for path, domain in parse_spec_vars(answer)[1]:
                rng = random.Random(f"{trial_id}{path}")
                if isinstance(domain, sample.Categorical):
                    assign_value(answer, path, rng.choice(domain.categories))
                else:
                    assign_value(answer, path, rng.uniform(domain.lower, domain.upper))
            return answer

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            self.told.append((trial_id, result and result["loss"], error))

    return Whole()


def flat_bounds() -> Any:
    """A searcher like BayesOptSearch: bounds of floats by flat name, an answer without constants, other kinds refused."""
    import numpy as np
    from ray.tune.search import Searcher, sample
    from ray.tune.search.variant_generator import parse_spec_vars
    from ray.tune.utils import flatten_dict
    from ray.tune.utils.util import unflatten_dict

    class Flat(Searcher):
        bounds: Any = None

        # BayesOptSearch's signature, without `**spec`
        def set_search_properties(self, metric: Any, mode: Any, config: Any) -> bool:  # type: ignore[override]
            bounds = {}
            for path, domain in parse_spec_vars(flatten_dict(config, prevent_delimiter=True))[1]:
                if not isinstance(domain, sample.Float):
                    raise ValueError(f"parameters of type {type(domain).__name__} are not supported")
                bounds["/".join(path)] = (domain.lower, domain.upper)
            self.bounds = bounds
            return True

        def suggest(self, trial_id: str) -> Any:
            rng = random.Random(trial_id)
            return unflatten_dict({name: np.float64(rng.uniform(*pair)) for name, pair in self.bounds.items()})

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...

    return Flat()


def optuna_of_ray() -> Any:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return OptunaSearch(seed=1)


def limited() -> Any:
    from ray.tune.search import ConcurrencyLimiter

    return ConcurrencyLimiter(optuna_of_ray(), max_concurrent=2)


SPACE = {"x": tune.uniform(0, 10), "m": {"y": tune.loguniform(0.1, 1), "k": 5, "deep": {"c": [1]}}, "c": 7}
SEARCHERS = (whole_spaces, flat_bounds, optuna_of_ray, limited)


def valley(config: dict[str, Any]) -> None:
    tune.report({"loss": (config["x"] - 3) ** 2 + config["m"]["y"]})


def sweep(search_alg: Any, folder: Path, space: Any = None, **settings: Any) -> Any:
    config = here(**{"metric": "loss", "mode": "min", "num_samples": 6, **settings}, search_alg=search_alg)
    return tune.Tuner(valley, param_space=space or SPACE, tune_config=config, run_config=quiet(folder)).fit()


@pytest.mark.parametrize("make", SEARCHERS)
def test_a_plug_in_of_ray_searches_param_space(make: Any, tmp_path: Path) -> None:
    results = sweep(make(), tmp_path)
    assert len(results) == 6
    assert len({result.config["x"] for result in results}) == 6
    for result in results:
        config = result.config
        assert set(config) == {"x", "m", "c"}
        assert config["c"] == 7
        assert (config["m"]["k"], config["m"]["deep"]) == (5, {"c": [1]})
        assert 0 <= config["x"] <= 10
        assert 0.1 <= config["m"]["y"] <= 1
        assert set(result.metrics["config"]) == {"x", "m", "c"} if "config" in result.metrics else True


def test_what_was_drawn_is_what_tables_show(tmp_path: Path) -> None:
    sweep(flat_bounds(), tmp_path)
    from windlass.tune.controller.journal.history import read_history

    trial = read_history(tmp_path / "sweep").trials["00000"]
    assert set(trial.assigned) == {"x", "m/y"}
    assert isinstance(trial.assigned["x"], float)


def test_a_plug_in_is_told_metric_mode_and_the_number_of_samples() -> None:
    plugin = whole_spaces()
    searcher = as_searcher(plugin)
    searcher.open(space=SPACE, objectives=GOAL, seed=0, num_samples=9)
    assert (plugin.metric, plugin.mode, plugin.spec) == ("loss", "min", {"num_samples": 9})


@pytest.mark.parametrize("make", [whole_spaces, optuna_of_ray])
def test_a_grid_is_refused_as_ray_does(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"refuses this param_space: Grid search parameters cannot be") as caught:
        sweep(make(), tmp_path, {"x": tune.uniform(0, 1), "g": tune.grid_search([1, 2])})
    assert caught.value.code == "space-not-searchable"  # type: ignore[attr-defined]


def test_a_kind_that_the_plug_in_cannot_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Flat refuses this param_space: parameters of type Categorical"):
        sweep(flat_bounds(), tmp_path, {"x": tune.uniform(0, 1), "g": tune.choice([1, 2])})


class DuplicateLabel(Exception):
    """As hyperopt's, which is no ValueError."""


def test_what_a_plug_in_raises_of_its_own_names_the_plug_in(tmp_path: Path) -> None:
    plugin = whole_spaces()
    plugin.convert_search_space = lambda space: (_ for _ in ()).throw(DuplicateLabel("m/y"))
    with pytest.raises(ValueError, match="Whole failed with this param_space: DuplicateLabel: m/y") as caught:
        sweep(plugin, tmp_path)
    assert caught.value.code == "space-not-searchable"  # type: ignore[attr-defined]


def test_a_parameter_without_a_value_is_an_error(tmp_path: Path) -> None:
    plugin = flat_bounds()
    plugin.suggest = lambda trial_id: {"x": 1.0}
    with pytest.raises(ValueError, match=r"Flat suggested no value for `m/y`"):
        sweep(plugin, tmp_path)


def test_two_spaces_are_refused_as_ray_does(tmp_path: Path) -> None:
    from ray.tune.search.optuna import OptunaSearch

    plugin = OptunaSearch({"x": __import__("optuna").distributions.FloatDistribution(0, 1)}, metric="loss", mode="min")
    with pytest.raises(ValueError, match="has its own space"):
        sweep(plugin, tmp_path, metric=None, mode=None)


@pytest.mark.parametrize("make", [whole_spaces, optuna_of_ray])
def test_an_extended_sweep_gets_the_same_plug_in_again(make: Any, tmp_path: Path) -> None:
    whole = [result.config for result in sweep(make(), tmp_path / "whole", num_samples=8)]
    sweep(make(), tmp_path / "parts", num_samples=4)
    tuner = tune.Tuner.extend(
        tmp_path / "parts" / "sweep", valley, num_samples=8, tune_config=here(search_alg=make()),
        run_config=tune.RunConfig(verbose=0),
    )  # fmt: skip
    assert [result.config for result in tuner.fit()] == whole
