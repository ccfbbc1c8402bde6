"""A sweep of a class whose workers are runs on this machine; workers and heads are killed on the way."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.system.stage import until
from tests.tune.sweep.conftest import SweepStage
from windlass import Options, load, tune
from windlass.core.errors import PreconditionError, WindlassError
from windlass.record.state import State
from windlass.tune.executors.slots import SlotsExecutor
from windlass.tune.sweep.handle import SweepHandle
from windlass.tune.sweep.launching import launch_sweep, start_head
from windlass.tune.trial import TrialStatus

pytestmark = pytest.mark.system
SLOT = [sys.executable, "-m", "windlass.tune.executors.slots.worker"]


def pulling(hill: SweepStage, **sweep: object) -> SweepHandle:
    task = {"run": SLOT, "cpus": 1, "vars": {"PAUSE_S": "0.08"}}
    path = hill.file({"trainable": "climbing:Climber", "slots": 2, **sweep}, tasks={"main": task}, params={})
    return SweepHandle(hill.prepare(path).create())


def test_workers_outlive_their_head_and_come_back_themselves(hill: SweepStage) -> None:
    handle = pulling(hill, samples=6, keep={"best": 1})
    head = hill.head(handle)
    until(lambda: len(hill.started()) >= 2, "both slots have a trial", timeout_s=300)
    head.kill()
    head.wait()
    os.kill(int(hill.started()[0][1]), signal.SIGKILL)
    assert hill.head(handle).wait(600) == 0, hill.words(handle)
    trials = handle.history.trials.values()
    assert [trial.status for trial in trials] == [TrialStatus.TERMINATED] * 6
    for trial in trials:
        assert [report.metrics["training_iteration"] for report in trial.reports] == list(range(1, 9))
    assert len(hill.runs("climb")) == 2, "one run a slot"
    assert {run.state for run in hill.runs("climb")} == {State.SUCCEEDED}


def test_the_same_trials_one_by_one_in_this_process(hill: SweepStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARTS", str(hill.starts))
    monkeypatch.setenv("PAUSE_S", "0")
    task = {"run": SLOT, "cpus": 1}
    path = hill.file({"trainable": "climbing:Climber", "samples": 3}, tasks={"main": task}, params={})
    handle = launch_sweep(hill.prepare(path), in_process=True)
    assert handle.row.counts == {"TERMINATED": 3}
    assert {int(pid) for _, pid in hill.started()} == {os.getpid()}
    assert hill.runs("climb") == []


def test_a_tuner_takes_slots_and_sends_its_function_by_value(hill: SweepStage) -> None:
    path = hill.experiment({"tasks": {"main": {"run": SLOT, "cpus": 1}}}, "slot")
    steps = [1, 2, 3]

    def climb(config: dict[str, float]) -> None:
        for step in steps:
            tune.report({"score": config["lr"] * step})

    executor = SlotsExecutor(prepared=load(path, options=Options(allow_dirty=True)), home=hill.home)
    config = tune.TuneConfig(metric="score", mode="max", num_samples=3, max_concurrent_trials=1, executor=executor)
    run = tune.RunConfig(name="hill", verbose=0)
    results = tune.Tuner(climb, param_space={"lr": tune.uniform(0, 1)}, tune_config=config, run_config=run).fit()
    best = results.get_best_result()
    assert best.metrics["score"] == pytest.approx(best.config["lr"] * 3)
    assert len(results) == 3


def test_slots_that_cannot_live_end_the_sweep_with_what_their_worker_said(hill: SweepStage) -> None:
    task = {"run": [sys.executable, "-c", "raise SystemExit('no windlass here')"], "cpus": 1}
    path = hill.file({"trainable": "climbing:Climber", "slots": 1}, tasks={"main": task}, params={})
    with pytest.raises(WindlassError, match="no windlass here") as caught:
        launch_sweep(hill.prepare(path))
    assert "cannot run" in str(caught.value)


def test_a_second_head_is_refused(hill: SweepStage) -> None:
    handle = pulling(hill, samples=2)
    hill.head(handle)
    until(lambda: handle.has_head, "a head lives")
    with pytest.raises(PreconditionError) as caught:
        start_head(handle.folder, hill.home)
    assert caught.value.code == "in-use"
