"""What Ray Tune's trials and their resources are asked for, asked of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import here, quiet
from windlass import tune
from windlass.tune.experiment import Trial
from windlass.tune.results.analysis import ExperimentAnalysis

STATUSES = ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR")
BUNDLES: list[list[dict[str, float]]] = [[{"CPU": 2}], [{"CPU": 1}, {"CPU": 2, "GPU": 0.5}], [{}, {"CPU": 2}]]


@pytest.mark.parametrize("bundles", BUNDLES)
def test_what_a_trial_needs_reads_as_ray_s_factory(bundles: list[dict[str, float]], need: Any) -> None:
    need("ray")
    from ray.tune import PlacementGroupFactory

    theirs, ours = PlacementGroupFactory(bundles, "SPREAD"), tune.PlacementGroupFactory(bundles, "SPREAD")
    for one in (ours, ours.to_resources()):
        for name in ("head_cpus", "head_bundle_is_empty", "required_resources", "strategy"):
            assert getattr(one, name) == getattr(theirs, name), name
    assert ours.to_resources() == ours


def test_the_statuses_are_those_of_ray(need: Any) -> None:
    need("ray")
    from ray.tune.experiment import Trial as Theirs

    assert {name: getattr(Trial, name) for name in STATUSES} == {name: getattr(Theirs, name) for name in STATUSES}


class RequestHandler(tune.Trainable):
    def step(self) -> dict[str, Any]:
        found = tune.get_context().get_trial_resources()
        assert found == self.trial_resources
        assert found == tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
        return {"head_cpus": self.trial_resources.head_cpus, "all": found.required_resources["CPU"], "done": True}


def test_a_trial_reads_its_own(tmp_path: Path) -> None:
    asking = tune.with_resources(RequestHandler, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]))
    seen: list[bool] = []

    class Looking(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            seen.append(trial.status == trial.TERMINATED == Trial.TERMINATED)

    tuner = tune.Tuner(asking, tune_config=here(), run_config=quiet(tmp_path, callbacks=[Looking()]))
    (result,) = tuner.fit()
    assert (result.metrics["head_cpus"], result.metrics["all"]) == (1, 2)
    assert seen == [True]
    (trial,) = ExperimentAnalysis(tmp_path / "sweep").trials
    assert trial.status == trial.TERMINATED
