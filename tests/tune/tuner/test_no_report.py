"""A trial that ends and has never reported: an error where trials are compared, and its end where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import here, quiet
from windlass import tune
from windlass.tune.classic import TuneError
from windlass.tune.schedulers import ASHAScheduler


def silent(config: dict[str, Any]) -> None:
    """Reports for odd x alone."""
    if config["x"] % 2:
        tune.report({"loss": config["x"]})


def fit(folder: Path, space: Any = None, run: Any = None, **settings: Any) -> Any:
    return tune.Tuner(
        silent, param_space=space or {"x": 2}, tune_config=here(**settings), run_config=run or quiet(folder)
    ).fit()


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": "loss", "mode": "min"},
        {"metric": "loss"},
        {"metric": "loss", "mode": "min", "search_alg": tune.TPE()},
        {"scheduler": ASHAScheduler(metric="loss", mode="min")},
    ],
)
def test_a_function_that_never_reports_has_failed_where_a_metric_is_named(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    results = fit(tmp_path, {"x": tune.choice([2])}, num_samples=2, **settings)
    assert (results.num_errors, results.num_terminated) == (2, 0)
    assert results.errors[0].message == (
        "NoReport: it ended and never reported `loss`; call tune.report({'loss': value}), or return that dictionary"
    )


def test_the_others_go_on(tmp_path: Path) -> None:
    results = fit(tmp_path, {"x": tune.grid_search([3, 2, 1])}, metric="loss", mode="min")
    assert (results.num_errors, results.num_terminated) == (1, 2)
    assert results.get_best_result().config == {"x": 1}


def test_without_a_metric_it_has_ended(tmp_path: Path) -> None:
    assert fit(tmp_path).num_terminated == 1


def test_it_is_tried_again_like_any_failure_and_a_restored_sweep_says_the_same(tmp_path: Path) -> None:
    run = quiet(tmp_path, failure_config=tune.FailureConfig(max_failures=1))
    results = fit(tmp_path, run=run, metric="loss", mode="min")
    assert results.num_errors == 1
    again = tune.Tuner.restore(tmp_path / "sweep", silent, tune_config=here(), run_config=tune.RunConfig(verbose=0))
    assert again.fit().num_errors == 1


def test_tune_run_raises(tmp_path: Path) -> None:
    with pytest.raises(TuneError):
        tune.run(silent, config={"x": 2}, metric="loss", mode="min", storage_path=tmp_path, verbose=0)
