"""Tuner: what Ray Tune's users write, from the first call to the results, in this process."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import Counting, bowl, here, quiet
from windlass import tune
from windlass.core.errors import UsageError, WindlassError
from windlass.tune.controller.journal.history import read_history
from windlass.tune.folder import SweepFolder

SPACE = {"x": tune.uniform(0, 10)}
GOAL = {"metric": "loss", "mode": "min"}


def test_a_function_is_tuned(tmp_path: Path) -> None:
    config = here(num_samples=8, **GOAL)
    results = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path)).fit()
    assert (len(results), results.num_terminated, results.num_errors) == (8, 8, 0)
    assert results.experiment_path == str(tmp_path / "sweep")
    best = results.get_best_result()
    assert best.metrics["loss"] == min(result.metrics["loss"] for result in results)
    assert best.metrics["training_iteration"] == 4
    assert best.config == {"x": best.config["x"]}


def test_the_same_seed_gives_the_same_trials(tmp_path: Path) -> None:
    def drawn(name: str, seed: int) -> list[float]:
        config = here(num_samples=3, seed=seed, **GOAL)
        tuner = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path, name))
        return [result.config["x"] for result in tuner.fit()]

    assert drawn("a", 0) == drawn("b", 0) != drawn("c", 1)


def test_a_class_is_tuned_until_the_stop_condition_holds(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([1, 2, 3])}
    run = quiet(tmp_path, stop={"training_iteration": 5})
    results = tune.Tuner(
        Counting, param_space=space, tune_config=here(metric="score", mode="max"), run_config=run
    ).fit()
    assert [result.metrics["score"] for result in results] == [5, 10, 15]
    assert results.get_best_result().config == {"x": 3}
    saved = results[2].checkpoint
    assert saved is not None, "a class that can save does so at its end"


def test_scheduler_and_searcher_may_be_named(tmp_path: Path) -> None:
    space = {"x": tune.uniform(0, 10)}
    config = here(num_samples=6, scheduler="asha", search_alg="random", **GOAL)
    results = tune.Tuner(bowl, param_space=space, tune_config=config, run_config=quiet(tmp_path)).fit()
    assert {result.metrics["training_iteration"] for result in results} <= {1, 4}


def test_one_scheduler_object_serves_several_sweeps(tmp_path: Path) -> None:
    scheduler = tune.ASHA(max_t=4, grace_period=1, reduction_factor=2)

    def lengths(name: str) -> list[int]:
        config = here(num_samples=8, scheduler=scheduler, **GOAL)
        tuner = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path, name))
        return [result.metrics["training_iteration"] for result in tuner.fit()]

    assert lengths("first") == lengths("second")


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> str:
        tuner = tune.Tuner(bowl, param_space=SPACE, tune_config=here(**GOAL), run_config=quiet(tmp_path, "digits"))
        return Path(tuner.fit().experiment_path).name

    assert [run(), run(), run()] == ["digits", "digits-2", "digits-3"]
    assert (
        capfd.readouterr().err.splitlines()[-1]
        == f"{tmp_path / 'digits'} contains an earlier sweep; this one is named digits-3"
    )


def test_without_a_name_the_folder_is_that_of_the_trainable(home: Path) -> None:
    run = tune.RunConfig(verbose=0)
    path = Path(tune.Tuner(bowl, param_space=SPACE, tune_config=here(**GOAL), run_config=run).fit().experiment_path)
    assert path.parent == home / "sweeps"
    assert path.name.startswith("bowl_")


def test_failed_trials_are_results(tmp_path: Path) -> None:
    space = {"fails_at": tune.grid_search([2, 0])}
    run = quiet(tmp_path, stop={"training_iteration": 3})
    results = tune.Tuner(Counting, param_space=space, tune_config=here(), run_config=run).fit()
    assert (results.num_errors, results.num_terminated) == (1, 1)
    assert "RuntimeError: as it was told" in str(results.errors[0])


def test_fail_fast_ends_the_sweep_and_raise_raises(tmp_path: Path) -> None:
    def tuner(name: str, fail_fast: Any) -> tune.Tuner:
        run = quiet(tmp_path, name, failure_config=tune.FailureConfig(fail_fast=fail_fast))
        return tune.Tuner(Counting, param_space={"fails_at": 1}, tune_config=here(num_samples=3), run_config=run)

    assert tuner("fast", True).fit().num_errors == 1
    with pytest.raises(RuntimeError, match="as it was told"):
        tuner("raise", "raise").fit()


def test_a_trial_is_tried_again_as_often_as_allowed(tmp_path: Path) -> None:
    run = quiet(tmp_path, failure_config=tune.FailureConfig(max_failures=2))
    results = tune.Tuner(Counting, param_space={"fails_at": 1}, tune_config=here(), run_config=run).fit()
    assert (results.num_errors, len(results.analysis.history.trials["00000"].attempts)) == (1, 3)


def test_results_before_fit_are_refused(tmp_path: Path) -> None:
    tuner = tune.Tuner(bowl, param_space=SPACE, tune_config=here(**GOAL), run_config=quiet(tmp_path))
    with pytest.raises(UsageError, match="the sweep has not run yet"):
        tuner.get_results()
    assert not (tmp_path / "sweep").exists(), "nothing happens before fit"
    assert tuner.fit() is tuner.get_results()


def test_budgets_reach_the_controller(tmp_path: Path) -> None:
    config = here(num_samples=-1, max_trials=3, **GOAL)
    results = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path)).fit()
    assert len(results) == 3
    config = here(num_samples=-1, time_budget_s=dt.timedelta(seconds=0.2), **GOAL)
    results = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path, "timed")).fit()
    assert len(results) >= 1


def test_a_timeout_is_the_sweeps_budget_also_when_nobody_reports(tmp_path: Path) -> None:
    def slow(config: dict[str, Any]) -> None:
        time.sleep(0.2)

    stop = [tune.stopper.TimeoutStopper(0.1), {"training_iteration": 9}]
    config = tune.TuneConfig(num_samples=50, time_budget_s=1000, executor="in-process")
    tuner = tune.Tuner(slow, tune_config=config, run_config=quiet(tmp_path, stop=stop))
    assert tuner._setup.settings.time_budget_s == 0.1
    assert len(tuner.fit()) < 50
    assert read_history(tmp_path / "sweep").ended_why == "the time budget of 0.1 s is used up"


def test_costs_are_those_of_the_time_that_trials_hold_resources(tmp_path: Path) -> None:
    def silent(config: dict[str, Any]) -> None:
        time.sleep(0.02)

    config = here(num_samples=60, max_cost=0.2, prices={"CPU": 3600})
    assert len(tune.Tuner(silent, tune_config=config, run_config=quiet(tmp_path)).fit()) <= 10
    assert read_history(tmp_path / "sweep").ended_why == "the sweep has cost 0.2"


def test_prices_of_nothing_that_trials_need_are_refused() -> None:
    with pytest.raises(UsageError, match="max_cost=1 is never reached: prices are of GPUU, and trials need CPU"):
        tune.Tuner(bowl, tune_config=here(max_cost=1.0, prices={"GPUU": 2.5}))


def test_objects_for_all_trials_are_not_in_the_journal(tmp_path: Path) -> None:
    def train(config: dict[str, Any], data: list[int]) -> None:
        tune.report({"loss": config["x"] * sum(data)})

    wrapped = tune.with_parameters(train, data=[1, 2, 3, 987654321])
    results = tune.Tuner(wrapped, param_space={"x": 1}, tune_config=here(**GOAL), run_config=quiet(tmp_path)).fit()
    assert results[0].metrics["loss"] == 987654327
    assert b"987654321" not in SweepFolder(tmp_path / "sweep").head_journal.read_bytes()


def test_an_unknown_metric_names_what_was_reported(tmp_path: Path) -> None:
    config = here(metric="los", mode="min")
    tuner = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path))
    with pytest.raises(WindlassError) as caught:
        tuner.fit()
    assert caught.value.code == "unknown-metric"
    assert "`los`" in caught.value.message
    assert "loss" in caught.value.message + caught.value.hint


def test_checkpoints_go_to_a_bucket_and_the_journal_stays(home: Path) -> None:
    run = tune.RunConfig(name="far", storage_path="memory://bucket/sweeps", verbose=0, stop={"training_iteration": 2})
    results = tune.Tuner(Counting, param_space={"x": 1}, tune_config=here(), run_config=run).fit()
    checkpoint = results[0].checkpoint
    assert checkpoint is not None
    assert checkpoint.path == "memory://bucket/sweeps/far/checkpoints/00000/000002-1"
    assert results.experiment_path == str(home / "sweeps" / "far")
    again = tune.Tuner.extend(
        "memory://bucket/sweeps/far", Counting, num_samples=2, tune_config=here(), run_config=tune.RunConfig(verbose=0)
    ).fit()
    assert again[1].checkpoint is not None
    assert again[1].checkpoint.path.startswith("memory://bucket/sweeps/far/checkpoints/00001/")
