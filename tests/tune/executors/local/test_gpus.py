"""GPUs are leased from the table that all runs on this machine share, and trials see those they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.process import identify
from windlass.runs.home import Home
from windlass.supervise.job import Lease
from windlass.supervise.leases import acquire, local_resources, release
from windlass.testing.executor_conformance import ExecutorBench
from windlass.testing.sample_trainables import show_environment
from windlass.tune.executors.local import Local
from windlass.tune.executors.local.machine_resources import MachineResources
from windlass.tune.executors.protocol import AttemptReported, AttemptStarted, Fit, Work
from windlass.tune.trial import Resources

GPU = Resources(bundles=({"CPU": 0.1, "GPU": 1.0},))
HALF = Resources(bundles=({"CPU": 0.1, "GPU": 0.5},))


@pytest.fixture
def two_gpus(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_GPUS", "4,7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def work(folder: Path, **options: object) -> Work:
    folder.mkdir(exist_ok=True)
    return Work(
        trainable=show_environment, name="sweep", folder=str(folder), storage=str(folder / "c"), options=options
    )


def test_a_sweep_waits_for_gpus_that_a_run_holds(two_gpus: None, tmp_path: Path) -> None:
    lease, job = Lease(folder=str(Home.default().leases), gpus=1), tmp_path / "job"
    assert acquire(lease, job, str(identify(os.getpid())), "run hello", local_resources()) == (("4",), "")
    places = MachineResources(work(tmp_path / "sweep"))
    assert places.room(GPU).fit is Fit.NOW
    assert list(places.take(GPU).gpus) == ["7"]
    room = places.room(GPU)
    assert room.fit is Fit.LATER
    assert "held by" in room.why
    assert "run hello" in room.why
    assert places.room(Resources(bundles=({"GPU": 3.0},))).fit is Fit.NEVER
    release(lease, job)
    places.close()
    assert acquire(Lease(folder=lease.folder, gpus=2), job, str(identify(os.getpid())), "", local_resources())[0] == (
        "4",
        "7",
    )


def test_two_sweeps_never_have_the_same_gpu(two_gpus: None, tmp_path: Path) -> None:
    first, second = MachineResources(work(tmp_path / "a")), MachineResources(work(tmp_path / "b"))
    assert first.room(HALF).fit is Fit.NOW
    first.take(HALF)
    assert second.room(GPU).fit is Fit.NOW
    assert list(second.take(GPU).gpus) == ["7"]
    assert first.room(HALF).fit is Fit.NOW
    assert list(first.take(HALF).gpus) == ["4"]
    assert first.room(HALF).fit is Fit.LATER
    assert not first.room(HALF).why.startswith("it needs")
    first.close()
    second.close()


def test_gpus_that_the_environment_names_are_not_leased(
    two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    places = MachineResources(work(tmp_path / "a"))
    assert list(places.take(GPU).gpus) == ["7"]
    assert not (Home.default().leases / "machine.json").exists()
    assert places.capacity()["GPU"] == 1.0


def test_stated_resources_replace_what_is_found(home: Path, tmp_path: Path) -> None:
    places = MachineResources(work(tmp_path / "a", resources={"CPU": 3, "widgets": 2}))
    assert places.capacity()["CPU"] == 3.0
    assert places.room(Resources(bundles=({"widgets": 2.0},))).fit is Fit.NOW
    assert places.room(Resources(bundles=({"widgets": 2.1},))).fit is Fit.NEVER


@pytest.mark.system
def test_trials_see_the_gpus_they_hold_and_each_has_a_process_of_its_own(two_gpus: None, tmp_path: Path) -> None:
    executor = Local()
    executor.open(work(tmp_path / "sweep"))
    bench = ExecutorBench(executor, work(tmp_path / "sweep"))
    try:
        for trial, resources in (("00000", GPU), ("00001", HALF), ("00002", HALF)):
            bench.start(trial, resources=resources)
        assert executor.room(HALF).fit is Fit.LATER
        seen, pids = {}, set()
        for trial in ("00000", "00001", "00002"):
            bench.finish(trial)
            seen[trial] = bench.of(AttemptReported, trial)[0].metrics["CUDA_VISIBLE_DEVICES"]
            pids.add(bench.of(AttemptStarted, trial)[0].pid)
        assert seen == {"00000": "4", "00001": "7", "00002": "7"}
        assert executor.room(Resources(bundles=({"GPU": 2.0},))).fit is Fit.NOW
        bench.start("00003")
        bench.finish("00003")
        assert bench.of(AttemptReported, "00003")[0].metrics["CUDA_VISIBLE_DEVICES"] == ""
        assert len(pids) == 3
    finally:
        executor.close()
