"""The executor in this process does what every executor must do, but for losing workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from windlass.testing.executor_conformance import ExecutorBench, ExecutorConformance
from windlass.testing.sample_trainables import act
from windlass.tune.executors.in_process import InProcess
from windlass.tune.executors.protocol import AttemptOutcome, AttemptReported, Executor, Work
from windlass.tune.trainable.session import report


class TestInProcess(ExecutorConformance):
    can_lose_workers = False
    counts_resources = False
    num_slots = 1

    def make_executor(self, folder: Path) -> Executor:
        return InProcess()


def work(trainable: Any, folder: Path) -> Work:
    return Work(trainable=trainable, name="sweep", folder=str(folder), storage=str(folder / "checkpoints"))


def test_host_runs_trials_in_the_calling_thread(tmp_path: Path) -> None:
    threads = []

    def trial(config: dict[str, Any]) -> None:
        threads.append(threading.current_thread())
        report({"value": 1})

    executor = InProcess()

    def drive() -> list[AttemptReported]:
        bench = ExecutorBench(executor, work(trial, tmp_path))
        executor.open(bench.work)
        for name in ("00000", "00001"):
            bench.start(name)
            assert bench.finish(name).how is AttemptOutcome.DONE
        executor.close()
        return bench.of(AttemptReported, "00001")

    assert executor.host(drive)[0].metrics["value"] == 1
    assert threads == [threading.current_thread()] * 2


def test_host_raises_what_the_controller_raises(tmp_path: Path) -> None:
    executor = InProcess()

    def drive() -> None:
        executor.open(work(act, tmp_path))
        raise KeyError("no such")

    with pytest.raises(KeyError, match="no such"):
        executor.host(drive)


def test_close_ends_a_trial_that_waits_for_an_answer(tmp_path: Path) -> None:
    seen = []

    def trial(config: dict[str, Any]) -> None:
        try:
            report({"value": 1})
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    executor = InProcess()
    bench = ExecutorBench(executor, work(trial, tmp_path))
    executor.open(bench.work)
    bench.start("00000")
    bench.wait_for(AttemptReported, "00000")
    executor.close()
    assert seen == ["TrialHalted"]
