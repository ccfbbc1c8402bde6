"""Metric and mode: both in one place, one in each of two, or only one of them, as Ray Tune takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import bowl, here, quiet
from windlass import tune
from windlass.core.errors import WindlassError
from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.schedulers import ASHAScheduler

SPACE = {"x": tune.grid_search([1, 3, 5, 8])}


def numbers(config: dict[str, Any]) -> float:
    """Returns a number, which is the metric `_metric`."""
    return -abs(float(config["x"]) - 5)


def fit(trainable: Any, folder: Path, space: Any = None, **settings: Any) -> Any:
    tuner = tune.Tuner(
        trainable, param_space=space or SPACE, tune_config=here(**settings), run_config=quiet(folder)
    )  # fmt: skip
    return tuner.fit()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_mode_without_a_metric_is_that_of_the_metric_named_later(mode: str, tmp_path: Path) -> None:
    results = fit(bowl, tmp_path, mode=mode)
    assert results.get_best_result("loss").config["x"] == (3 if mode == "min" else 8)
    again = ExperimentAnalysis(tmp_path / "sweep")
    assert again.default_mode == mode
    with pytest.raises(RuntimeError, match="no trial reported a number for '_metric'"):
        results.get_best_result()


def test_a_metric_without_a_mode_waits_for_one(tmp_path: Path) -> None:
    results = fit(bowl, tmp_path, metric="loss")
    assert results.get_best_result(mode="min").config["x"] == 3
    with pytest.raises(ValueError, match="mode"):
        results.get_best_result()


def test_a_metric_without_a_mode_must_be_reported_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trial reports `lost`"):
        fit(bowl, tmp_path, metric="lost")


def test_a_mode_alone_finds_the_number_that_a_function_returns(tmp_path: Path) -> None:
    assert fit(numbers, tmp_path, mode="max").get_best_result().config["x"] == 5


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": "loss", "scheduler": ASHAScheduler(mode="min")},
        {"mode": "min", "scheduler": ASHAScheduler(metric="loss")},
        {"metric": "loss", "search_alg": tune.OptunaSearch(mode="min")},
        {"mode": "min", "search_alg": tune.OptunaSearch(metric="loss")},
    ],
)
def test_the_metric_in_one_place_and_the_mode_in_another(settings: dict[str, Any], tmp_path: Path) -> None:
    results = fit(bowl, tmp_path, {"x": tune.choice([1, 3, 5, 8])}, num_samples=8, **settings)
    assert results.get_best_result().metrics["loss"] == min(one.metrics["loss"] for one in results)


def test_what_compares_by_a_mode_alone_compares_the_number_that_is_returned(tmp_path: Path) -> None:
    results = fit(numbers, tmp_path, {"x": tune.choice([1, 5])}, mode="max", num_samples=4, search_alg=tune.TPE())
    assert results.get_best_result().metrics["_metric"] == max(one.metrics["_metric"] for one in results)
    with pytest.raises(WindlassError, match="no trial reports `_metric`"):
        fit(bowl, tmp_path, mode="max", scheduler=ASHAScheduler())


def test_a_half_survives_a_restore(tmp_path: Path) -> None:
    fit(bowl, tmp_path, mode="max")
    tuner = tune.Tuner.extend(
        tmp_path / "sweep", bowl, num_samples=2, tune_config=here(), run_config=tune.RunConfig(verbose=0)
    )
    assert tuner.fit().get_best_result("loss").config["x"] == 8
