"""Heads of the local executor that die: nothing is left behind, or, where a sweep is detached, nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from windlass.core.process import ProcessId, identify, is_alive
from windlass.testing.executor_conformance import ExecutorBench
from windlass.testing.sample_trainables import Counter
from windlass.tune.executors.local import Local
from windlass.tune.executors.local.detached import read_registrations
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    CanReattach,
    Work,
)

pytestmark = pytest.mark.system

DEADLINE_S = 300.0


@dataclass
class Head:
    process: subprocess.Popen[str]
    workers: list[ProcessId]
    template: ProcessId

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_until(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def head(folder: Path, options: dict[str, Any], config: dict[str, Any]) -> Iterator[Head]:
    argv = [sys.executable, "-m", "tests.tune.executors.local.head_program", str(folder)]
    program = subprocess.Popen(
        [*argv, json.dumps(options), json.dumps(config)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        assert program.stdout is not None
        told = json.loads(program.stdout.readline())
        found = [identify(pid) for pid in (*told["workers"], told["template"])]
        assert all(found)
        *workers, template = (process for process in found if process is not None)
        yield Head(program, workers, template)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()  # type: ignore[union-attr]


@contextmanager
def successor(folder: Path, **options: Any) -> Iterator[ExecutorBench]:
    executor = Local()
    work = Work(
        trainable=Counter,
        name="sweep",
        folder=str(folder),
        storage=f"{folder}/checkpoints",
        num_slots=2,
        options={"detach": True, **options},
    )
    try:
        executor.open(work)
        yield ExecutorBench(executor, work)
    finally:
        executor.close()


def reattach(bench: ExecutorBench, held: dict[str, int]) -> Any:
    return cast("CanReattach", bench.executor).reattach(held)


def test_a_killed_head_takes_everything_with_it(tmp_path: Path) -> None:
    with head(tmp_path, {}, {"num": 10_000_000, "gate": str(tmp_path)}) as found:
        found.kill()
        for process in (*found.workers, found.template):
            wait_until(lambda process=process: not is_alive(process), f"{process} lives on")


def test_a_killed_template_takes_the_workers_with_it_and_another_one_is_made(tmp_path: Path) -> None:
    executor = Local()
    work = Work(trainable=Counter, name="sweep", folder=str(tmp_path), storage=f"{tmp_path}/c", num_slots=2)
    executor.open(work)
    bench = ExecutorBench(executor, work)
    try:
        bench.start("00000", config={"num": 3, "by": 1})
        bench.wait_for(AttemptReported, "00000")
        assert executor._template is not None
        os.kill(executor._template.pid, signal.SIGKILL)
        ended = bench.wait_for(AttemptEnded, "00000")
        assert ended.how is AttemptOutcome.LOST
        bench.start("00000", attempt=2, config={"num": 3, "by": 1})
        assert bench.finish("00000", 2).how is AttemptOutcome.DONE
    finally:
        executor.close()


def test_trials_of_a_detached_sweep_go_on_without_a_head_and_another_one_hears_everything(tmp_path: Path) -> None:
    with head(tmp_path, {"detach": True}, {"num": 30, "by": 1, "seconds": 0.02}) as found:
        found.kill()
        spools = [tmp_path / "spools" / f"{slot}.jsonl" for slot in (1, 2)]
        wait_until(lambda: all(b'"ended"' in spool.read_bytes() for spool in spools if spool.exists()), "no end")
        assert all(is_alive(worker) for worker in found.workers)
        with successor(tmp_path) as bench:
            assert reattach(bench, {"00000": 1, "00001": 1}) == {"00000": 1, "00001": 1}
            for trial in ("00000", "00001"):
                assert bench.finish(trial).how is AttemptOutcome.DONE
                iterations = [report.metrics["training_iteration"] for report in bench.of(AttemptReported, trial)]
                assert iterations == list(range(1, 31))
            bench.start("00002", config={"num": 2, "by": 1})
            assert bench.finish("00002").how is AttemptOutcome.DONE
        for process in (*found.workers, found.template):
            wait_until(lambda process=process: not is_alive(process), f"{process} lives on")
    assert not list((tmp_path / "spools").iterdir())


def test_another_head_takes_over_trials_in_their_middle(tmp_path: Path) -> None:
    with head(tmp_path, {"detach": True}, {"num": 60, "by": 1, "seconds": 0.05}) as found:
        found.kill()
        with successor(tmp_path) as bench:
            assert reattach(bench, {"00000": 1}) == {"00000": 1}
            wait_until(lambda: not is_alive(found.workers[1]), "a worker that nobody asked for lives on")
            bench.wait_for(AttemptReported, "00000")
            bench.halt("00000", saves=True)
            assert bench.wait_for(AttemptEnded, "00000").how is AttemptOutcome.HALTED
            assert bench.wait_for(AttemptSaved, "00000").iteration > 0
        wait_until(lambda: not is_alive(found.workers[0]), "a worker lives on")


def test_workers_that_no_head_comes_for_save_and_end(tmp_path: Path) -> None:
    with head(tmp_path, {"detach": True, "linger_s": 0.3}, {"num": 100_000, "by": 1, "seconds": 0.02}) as found:
        found.kill()
        for process in (*found.workers, found.template):
            wait_until(lambda process=process: not is_alive(process), f"{process} lives on")
    with successor(tmp_path) as bench:
        assert reattach(bench, {"00000": 1, "00001": 1}) == {"00000": 1, "00001": 1}
        ended = bench.wait_for(AttemptEnded, "00000")
        assert ended.how is AttemptOutcome.LOST
        assert "no head came back" in ended.error
        saved = bench.wait_for(AttemptSaved, "00000")
        assert bench.of(AttemptReported, "00000")[-1].metrics["training_iteration"] == saved.iteration
        assert list(read_registrations(str(tmp_path))) == []


def test_a_worker_that_died_with_its_head_is_not_held(tmp_path: Path) -> None:
    with head(tmp_path, {"detach": True}, {"num": 100_000, "by": 1, "seconds": 0.02}) as found:
        found.kill()
        os.kill(found.workers[0].pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(found.workers[0]), "it lives on")
        with successor(tmp_path) as bench:
            assert reattach(bench, {"00000": 1, "00001": 1}) == {"00001": 1}
            os.kill(found.workers[1].pid, signal.SIGKILL)
            assert bench.wait_for(AttemptEnded, "00001").how is AttemptOutcome.LOST


def test_a_head_that_detaches_leaves_trials_running(tmp_path: Path) -> None:
    with successor(tmp_path) as bench:
        bench.start("00000", config={"num": 20, "by": 1, "seconds": 0.02})
        bench.wait_for(AttemptReported, "00000")
        cast("CanReattach", bench.executor).detach()
    with successor(tmp_path) as bench:
        assert reattach(bench, {"00000": 1}) == {"00000": 1}
        assert bench.finish("00000").how is AttemptOutcome.DONE
        assert len(bench.of(AttemptReported, "00000")) == 20
