"""Searchers that learn: what they take, what they refuse, and that they learn at all."""

from __future__ import annotations

import importlib
import math
from statistics import mean
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution

from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.rng import draw_int
from windlass.tune.search import Objectives, Suggestion, create_searcher
from windlass.tune.search.bohb.bohb_search import TuneBOHB
from windlass.tune.search.defaults import library
from windlass.tune.search.optuna.bohb import BOHB
from windlass.tune.search.optuna.optuna_search import OptunaSearch
from windlass.tune.search.optuna.samplers import CMAES, NSGA2, TPE
from windlass.tune.search.registry import own_objectives
from windlass.tune.space import SpaceError
from windlass.tune.space.primitives import choice, grid_search, randint, uniform

MIN = Objectives(metrics=("loss",), is_max=(False,))
BOX: dict[str, Any] = {"x": uniform(-5, 5), "y": uniform(-5, 5)}


def opened(searcher: Any, space: dict[str, Any] | None = None, *, objectives: Objectives = MIN, seed: int = 1) -> Any:
    searcher.open(space=BOX if space is None else space, objectives=objectives, seed=seed, num_samples=-1)
    return searcher


def search(searcher: Any, number: int, score: Any) -> list[dict[str, Any]]:
    configs = []
    for index in range(number):
        suggestion = searcher.suggest(index)
        searcher.on_suggested(index, suggestion)
        searcher.on_complete(index, score(suggestion.config))
        configs.append(suggestion.config)
    return configs


def bowl(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": (config["x"] - 1) ** 2 + (config["y"] + 2) ** 2}


def hill(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": -bowl(config)["loss"]}


@pytest.mark.parametrize("make", [TPE, CMAES, BOHB, lambda: NSGA2(population_size=8), OptunaSearch])
@pytest.mark.parametrize(("objectives", "score"), [(MIN, bowl), (Objectives(metrics=("loss",), is_max=(True,)), hill)])
def test_they_come_nearer(make: Any, objectives: Objectives, score: Any) -> None:
    configs = search(opened(make(), objectives=objectives), 60, score)
    far, near = (mean(bowl(config)["loss"] for config in part) for part in (configs[:10], configs[-10:]))
    assert near < far * 0.7


@pytest.mark.parametrize("num_told", [0, 5, 12, 30])
def test_a_suggestion_is_that_of_optunas_sampler_with_the_same_history(num_told: int) -> None:
    """So whatever the sampler is worth alone, it is worth here."""
    searcher = opened(TPE(), seed=4)
    configs = search(searcher, num_told, bowl)
    study = optuna.create_study()
    distributions: dict[str, BaseDistribution] = {name: FloatDistribution(-5, 5) for name in BOX}
    for config in configs:
        study.add_trial(optuna.create_trial(params=config, distributions=distributions, value=bowl(config)["loss"]))
    study.sampler = optuna.samplers.TPESampler(seed=draw_int(4, "sampler", num_told) % 2**32)
    trial = study.ask()
    assert searcher.suggest(num_told).config == {name: trial.suggest_float(name, -5, 5) for name in BOX}


def test_nan_infinity_and_errors_are_survived() -> None:
    odd = iter([{"loss": math.nan}, {"loss": math.inf}, {"loss": -math.inf}, None, {"other": 1}, {"loss": None}] * 6)
    for make in (TPE, BOHB, lambda: CMAES(n_startup_trials=3)):
        search(opened(make()), 12, lambda config: next(odd) if config["x"] > 0 else bowl(config))


def test_conditional_spaces_are_learned_by_their_options() -> None:
    space = {"o": choice([{"k": "bad", "x": uniform(0, 1)}, {"k": "good", "x": uniform(5, 6)}])}
    configs = search(opened(TPE(), space), 50, lambda c: {"loss": abs(c["o"]["x"] - 5.5) + (c["o"]["k"] == "bad") * 9})
    assert sum(config["o"]["k"] == "good" for config in configs[-20:]) >= 16
    assert mean(abs(config["o"]["x"] - 5.5) for config in configs[-20:] if config["o"]["k"] == "good") < 0.25


def test_fixed_parameters_are_fixed_and_learned_from() -> None:
    configs = search(opened(TPE(fixed={"y": 0.5})), 15, bowl)
    assert {config["y"] for config in configs} == {0.5}
    with pytest.raises(UsageError, match="TPE fixes `z`, which the space does not have"):
        opened(TPE(fixed={"z": 1}))


def test_known_points_count() -> None:
    far = mean(abs(config["x"] - 1) for config in search(opened(TPE(n_startup_trials=20)), 20, bowl))
    searcher = opened(TPE(n_startup_trials=20))
    configs = [{"x": 1 + 0.01 * k, "y": -2.0} for k in range(10)] + [{"x": -4.0, "y": -0.5 * k} for k in range(10)]
    searcher.add_known(configs, [bowl(config) for config in configs])
    drawn = search(searcher, 20, bowl)
    assert mean(abs(config["x"] - 1) for config in drawn) < far * 0.75
    with pytest.raises(UsageError, match="a known point is not in the space"):
        searcher.add_known([{"x": 99.0, "y": 0.0}], [{"loss": 1}])


def test_points_outside_the_space_are_run_and_not_learned_from() -> None:
    configs = search(opened(TPE(points_to_evaluate=[{"x": 50.0, "y": 0.0}])), 14, bowl)
    assert configs[0]["x"] == 50.0
    assert all(-5 <= config["x"] <= 5 for config in configs[1:])


def test_points_with_misspelt_names_are_refused() -> None:
    with pytest.raises(SpaceError, match="a point in points_to_evaluate has `xx`"):
        opened(TPE(points_to_evaluate=[{"xx": 1}]))


def test_a_grid_is_not_searched() -> None:
    with pytest.raises(UsageError) as caught:
        opened(TPE(), {"g": grid_search([1, 2])})
    assert caught.value.message == "`g` is a grid, which TPE cannot search"


def test_a_metric_is_needed() -> None:
    with pytest.raises(UsageError, match="TPE learns from results, but no metric is set"):
        opened(TPE(), objectives=Objectives())


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        opened(TPE(n_startup_trails=3))
    assert caught.value.message == "TPE has no option `n_startup_trails`"
    assert caught.value.hint == "did you mean `n_startup_trials`?"


def test_one_goal_searchers_refuse_two() -> None:
    two = Objectives(metrics=("a", "b"), is_max=(False, False))
    for searcher in (CMAES(), BOHB()):
        with pytest.raises(UsageError, match="optimizes one metric, not 2: a, b"):
            opened(searcher, objectives=two)


# ------------------------------------------------------------------------------------------------- OptunaSearch, BOHB


def test_optuna_search_takes_distributions_of_optuna() -> None:
    space = {
        "m/x": optuna.distributions.FloatDistribution(1, 1.9, step=0.3),
        "k": optuna.distributions.IntDistribution(1, 9, step=4),
        "c": optuna.distributions.CategoricalDistribution(["a", 2, None]),
    }
    searcher = opened(OptunaSearch(space, metric="loss", mode="max"), {"base": 7}, objectives=Objectives())
    assert searcher.objectives == Objectives(metrics=("loss",), is_max=(True,))
    for config in search(searcher, 30, lambda config: {"loss": config["k"]}):
        assert config["base"] == 7
        assert round((config["m"]["x"] - 1) / 0.3, 6) in (0, 1, 2, 3)
        assert config["k"] in (1, 5, 9)


def test_two_spaces_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="has its own space, but param_space draws values too"):
        opened(OptunaSearch({"x": optuna.distributions.FloatDistribution(0, 1)}))


def test_rewards_of_points_are_told_and_the_points_not_run() -> None:
    points = [{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}]
    searcher = opened(OptunaSearch(points_to_evaluate=points, evaluated_rewards=[3.0, 2.0]))
    assert len(searcher._model) == 2
    assert searcher.suggest(0).config not in points
    with pytest.raises(UsageError, match="2 points_to_evaluate but 1 evaluated_rewards"):
        OptunaSearch(points_to_evaluate=points, evaluated_rewards=[3.0])


def test_optunas_storages_are_refused() -> None:
    with pytest.raises(UsageError, match="the sweep's journal keeps everything"):
        OptunaSearch(storage="sqlite:///x.db")


def test_a_sampler_without_a_generator_is_asked_as_it_is() -> None:
    class Counting(optuna.samplers.BaseSampler):
        count = 0.0

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> float:
            self.count += 1
            return self.count / 100

    configs = search(opened(OptunaSearch(sampler=Counting())), 3, bowl)
    assert [config["x"] for config in configs] == [0.01, 0.03, 0.05]


def test_bohb_models_the_largest_budget_with_enough_results() -> None:
    searcher = opened(BOHB(min_points_in_model=3, random_fraction=0))
    for number in range(8):
        searcher.on_suggested(number, Suggestion(config={"x": number - 4.0, "y": 0.0}))
        searcher.on_result(number, {"loss": 1.0, "hyperband_info": {"budget": 1}})
    assert searcher._best_model() is searcher._models[1]
    for number in range(5):
        assert searcher._best_model() is searcher._models[1]
        searcher.on_result(number, {"loss": 1.0, "hyperband_info": {"budget": 3}})
        searcher.on_result(number, {"loss": 2.0, "hyperband_info": {"budget": 3}})
    assert searcher._best_model() is searcher._models[3]
    assert len(searcher._models[3]) == 5
    for number in range(8):
        searcher.on_complete(number, {"loss": 0.0, "hyperband_info": {"budget": 9}} if number < 2 else None)
    assert len(searcher._models[9]) == 2


def test_bohb_without_hyperband_counts_by_iterations() -> None:
    searcher = opened(BOHB())
    searcher.on_suggested(0, Suggestion(config={"x": 0.0, "y": 0.0}))
    searcher.on_result(0, {"loss": 1.0, "training_iteration": 3})
    searcher.on_complete(0, {"loss": 1.0, "training_iteration": 4})
    assert list(searcher._models) == [4]


def test_tune_bohb_has_rays_arguments() -> None:
    searcher = opened(
        TuneBOHB({"x": uniform(0, 1)}, {"random_fraction": 0.5}, metric="loss", mode="min", seed=3),
        {"k": 1},
        objectives=Objectives(),
    )
    assert set(searcher.suggest(0).config) == {"x", "k"}
    with pytest.raises(UsageError, match="has no option `bandwidth_factor`"):
        TuneBOHB(bohb_config={"bandwidth_factor": 3})


# ------------------------------------------------------------------------------------------------------- by name


def test_searchers_have_short_names() -> None:
    assert type(create_searcher("random")).__name__ == "BasicVariantGenerator"
    assert type(create_searcher("TPE", metric="loss", mode="min", n_startup_trials=3)).__name__ == "TPE"
    assert own_objectives(create_searcher("optuna", metric="loss", mode="min")) == MIN
    with pytest.raises(UsageError) as caught:
        create_searcher("optnua")
    assert (caught.value.message, caught.value.hint) == ("unknown searcher `optnua`", "did you mean `optuna`?")
    with pytest.raises(UsageError, match="random has no option `max_concurent`"):
        create_searcher("random", max_concurent=3)
    with pytest.raises(PreconditionError, match="windlass has no searcher `hyperopt`"):
        create_searcher("hyperopt")


def test_searchers_are_found_where_ray_has_them() -> None:
    for module, name in (
        ("search", "ConcurrencyLimiter"), ("search", "Repeater"), ("search", "BasicVariantGenerator"), ("search", "Searcher"),
        ("search.basic_variant", "BasicVariantGenerator"), ("search.concurrency_limiter", "ConcurrencyLimiter"),
        ("search.repeater", "Repeater"), ("search.searcher", "Searcher"), ("search.optuna", "OptunaSearch"),
        ("search.optuna.optuna_search", "OptunaSearch"), ("search.bohb", "TuneBOHB"), ("search.bohb.bohb_search", "TuneBOHB"),
        ("search.sample", "Function"), ("search.variant_generator", "generate_variants"),
    ):  # fmt: skip
        assert hasattr(importlib.import_module(f"windlass.tune.{module}"), name)
    with pytest.raises(PreconditionError, match="windlass has no searcher `hyperopt`"):
        _ = importlib.import_module("windlass.tune.search.hyperopt").HyperOptSearch


def test_variants_are_generated_as_rays() -> None:
    from windlass.tune.search.variant_generator import generate_variants

    made = list(generate_variants({"a": grid_search([1, 2]), "b": {"c": uniform(0, 1)}}, random_state=1))
    assert [drawn[("a",)] for drawn, _ in made] == [1, 2]
    assert made[0][0][("b", "c")] == made[0][1]["b"]["c"]
    same = generate_variants({"a": grid_search([1, 2]), "x": uniform(0, 1)}, constant_grid_search=True, random_state=1)
    assert len({config["x"] for _, config in same}) == 1


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("windlass.core.extras.import_module", missing)
    with pytest.raises(PreconditionError) as caught:
        library("optuna", "TPE")
    assert caught.value.message == "TPE needs the library optuna, which is not installed"
    assert caught.value.hint == "pip install 'windlass[tune]'"
    assert caught.value.code == "extra-missing"


def test_the_space_may_hold_integers_of_any_size() -> None:
    space = {"seed": randint(0, 2**40), "x": uniform(0, 1)}
    assert all(0 <= config["seed"] < 2**40 for config in search(opened(TPE(), space), 14, lambda c: {"loss": c["x"]}))
