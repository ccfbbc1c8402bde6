"""examples/sweep-replicas: every trial is a run of two replicas, and ASHA stops those that fall behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.example_copy import copy_example
from windlass import Run
from windlass.tune.sweep.launching import launch_sweep

pytestmark = pytest.mark.system


def test_the_best_of_eight_runs_of_two_replicas(home: Path, tmp_path: Path) -> None:
    folder = copy_example("sweep-replicas", tmp_path / "example")
    handle = launch_sweep(folder / "experiment.yaml", ["sweep.samples=5"], name="fit")
    trials = list(handle.history.trials.values())
    assert len(trials) == 5
    assert {str(trial.status) for trial in trials} == {"TERMINATED"}, [(trial.id, trial.error) for trial in trials]
    assert trials[0].config == {"learning_rate": 0.1, "momentum": 0.5}
    assert min(trial.iteration for trial in trials) < 27 == max(trial.iteration for trial in trials)
    best = handle.best()
    assert best.last is not None
    assert best.last["loss"] < 0.05
    run = Run.find(handle.run_of(best.id, 1))
    assert len(run.facts.task("train").attempts[1].replicas) == 2
