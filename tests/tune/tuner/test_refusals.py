"""What does not go together is refused by Tuner itself, with one error, before anything starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import Counting, bowl, here, quiet
from windlass import tune
from windlass.core.errors import WindlassError
from windlass.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as ASHAScheduler
from windlass.tune.schedulers.pbt import PopulationBasedTraining
from windlass.tune.search import ConcurrencyLimiter


class Forgetful(tune.Trainable):
    """Cannot save."""

    def step(self) -> dict[str, Any]:
        return {"score": 1}


MUTATIONS: dict[str, Any] = {"time_attr": "training_iteration", "hyperparam_mutations": {"x": [1, 2]}}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "two metrics": (
        bowl,
        {"metric": "loss", "mode": "min", "scheduler": ASHAScheduler(metric="score", mode="max")},
        "conflicting-options",
    ),
    "the same metric twice": (
        bowl,
        {"metric": "loss", "mode": "min", "scheduler": ASHAScheduler(metric="loss", mode="min")},
        "conflicting-options",
    ),
    "searcher and config": (
        bowl,
        {"metric": "loss", "mode": "min", "search_alg": tune.OptunaSearch(metric="score", mode="max")},
        "conflicting-options",
    ),
    "no metric": (bowl, {"scheduler": ASHAScheduler()}, "unknown-metric"),
    "no mode for ASHA": (bowl, {"metric": "loss", "scheduler": ASHAScheduler()}, "unknown-metric"),
    "no mode for TPE": (bowl, {"metric": "loss", "search_alg": tune.TPE()}, "unknown-metric"),
    "two modes": (
        bowl,
        {"metric": "loss", "mode": "min", "scheduler": ASHAScheduler(mode="min")},
        "conflicting-options",
    ),
    "two limits": (
        bowl,
        {"max_concurrent_trials": 3, "search_alg": ConcurrencyLimiter(tune.Random(), max_concurrent=2)},
        "conflicting-options",
    ),
    "PBT cannot save": (
        Forgetful,
        {"metric": "score", "mode": "max", "scheduler": PopulationBasedTraining(**MUTATIONS)},
        "invalid-trainable",
    ),
    "PBT with search": (
        Counting,
        {
            "metric": "score",
            "mode": "max",
            "scheduler": PopulationBasedTraining(**MUTATIONS),
            "search_alg": tune.TPE(),
        },
        "searcher-option",
    ),
    "an option that TPE does not have": (
        bowl,
        {"metric": "loss", "mode": "min", "search_alg": tune.TPE(n_startup_trails=3)},
        "searcher-option",
    ),
    "unknown scheduler": (bowl, {"scheduler": "ahsa"}, "unknown-name"),
    "unknown searcher": (bowl, {"search_alg": "tpee"}, "unknown-name"),
    "a class for a scheduler": (bowl, {"scheduler": ASHAScheduler}, "invalid-value"),
    "no scheduler": (bowl, {"scheduler": 3}, "invalid-value"),
}


@pytest.mark.parametrize("name", CASES)
def test_combinations_are_refused_at_once(name: str, tmp_path: Path) -> None:
    trainable, settings, code = CASES[name]
    with pytest.raises(WindlassError) as caught:
        tune.Tuner(trainable, param_space={"x": 1}, tune_config=here(**settings), run_config=quiet(tmp_path))
    assert caught.value.code == code
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"stop": 3}, "invalid-value"),
        ({"stop": tune.stopper.MaximumIterationStopper}, "invalid-value"),
        ({"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=2)}, "unsupported-setting"),
        ({"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=True)}, "unsupported-setting"),
        ({"progress_reporter": object()}, "unsupported-setting"),
    ],
)
def test_a_run_config_that_cannot_be_honoured_is_refused(settings: dict[str, Any], code: str, tmp_path: Path) -> None:
    run = quiet(tmp_path, **settings)
    run.verbose = 1
    with pytest.raises(WindlassError) as caught:
        tune.Tuner(bowl, param_space={"x": 1}, tune_config=here(), run_config=run)
    assert caught.value.code == code


@pytest.mark.parametrize("trainable", [None, 3, "no-such-trainable", dict, lambda: None])
def test_what_is_no_trainable_is_refused(trainable: Any) -> None:
    with pytest.raises(WindlassError):
        tune.Tuner(trainable)


@pytest.mark.parametrize("space", [3, [1], {"x": threading.Lock()}, {"x": {"y": tune.choice([1, print])}}])
def test_a_space_that_makes_no_sense_is_refused(space: Any) -> None:
    with pytest.raises(WindlassError):
        tune.Tuner(bowl, param_space=space)


def test_rays_own_objects_are_refused_with_ours_in_the_hint(tmp_path: Path) -> None:
    class Foreign:
        """Looks like one of Ray's schedulers."""

    Foreign.__module__ = "ray.tune.schedulers.async_hyperband"
    with pytest.raises(WindlassError) as caught:
        tune.Tuner(bowl, tune_config=here(scheduler=Foreign()), run_config=quiet(tmp_path))
    hint = "import it from windlass.tune.schedulers.async_hyperband instead of ray.tune.schedulers.async_hyperband"
    assert caught.value.hint == hint


def test_an_unknown_executor_is_refused_with_the_nearest(tmp_path: Path) -> None:
    config = tune.TuneConfig(executor="locl")
    with pytest.raises(WindlassError) as caught:
        tune.Tuner(bowl, param_space={"x": 1}, tune_config=config, run_config=quiet(tmp_path)).fit()
    assert (caught.value.message, caught.value.hint) == ("unknown executor 'locl'", "did you mean 'local'?")


@pytest.mark.parametrize(("tuning", "run"), [({"detach": True}, {}), ({}, {"log_to_file": True})])
def test_what_an_executor_cannot_do_is_refused_before_anything_starts(
    tuning: dict[str, Any], run: dict[str, Any], tmp_path: Path
) -> None:
    tuner = tune.Tuner(bowl, param_space={"x": 1}, tune_config=here(**tuning), run_config=quiet(tmp_path, **run))
    with pytest.raises(WindlassError, match="the executor in-process does not support") as caught:
        tuner.fit()
    assert caught.value.code == "unsupported-setting"
    assert not (tmp_path / "sweep").exists()


def test_a_class_that_cannot_save_is_not_told_to(tmp_path: Path) -> None:
    run = quiet(tmp_path, checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2))
    with pytest.raises(
        WindlassError, match="checkpoint_frequency is set, but Forgetful cannot save checkpoints"
    ) as caught:
        tune.Tuner(Forgetful, tune_config=here(), run_config=run)
    assert caught.value.code == "invalid-trainable"
