"""What a sweep is told: arguments by Ray's names and places, and refusals that say what to type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from windlass import tune
from windlass.core.errors import UsageError


def test_arguments_have_rays_order_and_defaults() -> None:
    assert tune.TuneConfig("max", "accuracy") == tune.TuneConfig(mode="max", metric="accuracy")
    assert tune.FailureConfig(3).max_failures == 3
    assert tune.CheckpointConfig(2, "loss", "min", 5, True).checkpoint_frequency == 5
    run = tune.RunConfig("digits", "/data")
    assert (run.name, run.storage_path, run.failures, run.checkpoints.num_to_keep) == (
        "digits",
        "/data",
        tune.FailureConfig(),
        None,
    )


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        tune.TuneConfig(metrc="loss")  # type: ignore[call-arg]
    said = " ".join(str(caught.value.problems[0]).split())
    assert said == "error: TuneConfig has no argument `metrc` [unknown-option] hint: did you mean `metric`?"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tune.TuneConfig(mode="maximum"), "mode='maximum' is not one of min, max"),
        (lambda: tune.TuneConfig(num_samples=0), "num_samples=0 is neither a positive number nor -1"),
        (lambda: tune.TuneConfig(max_concurrent_trials=-1), "max_concurrent_trials=-1 is negative"),
        (lambda: tune.TuneConfig(num_samples=1.5), "num_samples=1.5 is neither"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(num_samples="3"), "num_samples='3' is neither"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(max_concurrent_trials="4"), "max_concurrent_trials='4' is not"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(time_budget_s="1h"), "time_budget_s='1h' is not a number"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(time_budget_s=-1), "time_budget_s=-1 is negative"),
        (lambda: tune.TuneConfig(gpu_hours=float("nan")), "gpu_hours=nan is not a number"),
        (lambda: tune.TuneConfig(metric=3), "metric=3 is not the name of a metric"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(max_cost=5), "max_cost=5 is never reached without prices"),
        (lambda: tune.TuneConfig(max_cost=5, prices={"GPU": -1}), "prices['GPU']=-1 is negative"),
        (lambda: tune.TuneConfig(seed="a"), "seed='a' is not an integer"),  # type: ignore[arg-type]
        (lambda: tune.FailureConfig("x"), "max_failures='x' is neither"),  # type: ignore[arg-type]
        (lambda: tune.RunConfig(name="../digits"), "name='../digits' cannot be the name of a folder"),
        (lambda: tune.RunConfig(name=".."), "name='..' cannot be the name of a folder"),
        (lambda: tune.RunConfig(name="a\nb"), "name='a\\nb' cannot be the name of a folder"),
        (lambda: tune.RunConfig(name="x" * 300), f"name='{'x' * 80}' cannot be the name of a folder"),
        (lambda: tune.RunConfig(verbose="x"), "verbose='x' is not a number"),  # type: ignore[arg-type]
        (lambda: tune.TPE(points_to_evaluate={"x": 1}), "points_to_evaluate is {'x': 1}"),  # type: ignore[arg-type]
        (lambda: tune.ASHA(max_t="9"), "max_t is '9'"),
        (lambda: tune.RunConfig(name=3), "name=3 is not a string"),  # type: ignore[arg-type]
        (lambda: tune.RunConfig(storage_path=3), "storage_path=3 is not a path"),  # type: ignore[arg-type]
        (lambda: tune.TuneConfig(metric="a", mode=["min", "max"]), "1 metric and 2 modes"),
        (lambda: tune.TuneConfig(reuse="sometimes"), "reuse='sometimes' is not one of auto, always, never"),
        (lambda: tune.FailureConfig(fail_fast="often"), "fail_fast='often' is not one of raise"),
        (lambda: tune.FailureConfig(2, fail_fast=True), "fail_fast=True and max_failures=2 are mutually exclusive"),
        (lambda: tune.CheckpointConfig(num_to_keep=0), "num_to_keep=0 is less than 1"),
        (lambda: tune.CheckpointConfig(checkpoint_frequency=-1), "checkpoint_frequency=-1 is negative"),
        (lambda: tune.CheckpointConfig(checkpoint_score_order="up"), "checkpoint_score_order='up' is not one of"),
        (lambda: tune.RunConfig(storage_filesystem=3), "storage_filesystem=3 is not supported"),
        (
            lambda: tune.RunConfig(storage_path="a", local_dir="b"),
            "storage_path='a' and local_dir='b' are different folders",
        ),
        (lambda: tune.ResumeConfig(errored="again"), "errored='again' is not one of resume, restart, skip"),
    ],
)
def test_bad_values_are_refused_with_the_users_own_value(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_values_are_read_in_all_their_forms() -> None:
    assert tune.TuneConfig(time_budget_s=dt.timedelta(minutes=2)).budget_s == 120
    assert tune.TuneConfig(time_budget_s=5).budget_s == 5
    assert tune.TuneConfig(metric=["a", "b"], mode=["min", "max"]).metrics == ("a", "b")
    assert [tune.TuneConfig(reuse_actors=flag).reuse_policy for flag in (None, True, False)] == [
        "auto",
        "always",
        "never",
    ]
    assert tune.RunConfig(local_dir="/old").storage_path == "/old"
    assert tune.FailureConfig(fail_fast="RAISE").fail_fast == "raise"
    assert tune.ResumeConfig(errored=tune.ResumeConfig.ResumeType.RESTART).errored == "restart"
