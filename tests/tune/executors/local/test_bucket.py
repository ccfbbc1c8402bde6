"""Trials whose checkpoints are kept in a bucket: saved, torn there, gone on from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.s3 import S3Lab
from windlass.testing.executor_conformance import ExecutorBench
from windlass.testing.sample_trainables import Counter, report_and_save
from windlass.tune.executors.local import Local
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome, AttemptReported, AttemptSaved, Work
from windlass.tune.storage import delete

pytestmark = pytest.mark.system


def test_trials_save_to_a_bucket_and_go_on_from_there(
    need: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("s3")
    lab = S3Lab()
    lab.up()
    try:
        lab.make_bucket("sweeps")
        for name, value in lab.env.items():
            monkeypatch.setenv(name, value)
        go_on(tmp_path)
        report(tmp_path)
    finally:
        lab.down()


def go_on(folder: Path) -> None:
    executor = Local()
    work = Work(trainable=Counter, name="s", folder=str(folder / "a"), storage="s3://sweeps/a/checkpoints", num_slots=2)
    executor.open(work)
    try:
        bench = ExecutorBench(executor, work)
        bench.start("00000", config={"num": 4, "by": 5})
        bench.wait_for(AttemptReported, "00000")
        bench.halt("00000", saves=True)
        saved = bench.wait_for(AttemptSaved, "00000")
        assert saved.path == "s3://sweeps/a/checkpoints/00000/000001-1"
        bench.wait_for(AttemptEnded, "00000")
        bench.start("00000", attempt=2, config={"num": 4, "by": 5}, restore_from=saved.path, iteration=1)
        assert bench.finish("00000", 2).how is AttemptOutcome.DONE
        assert [report.metrics["value"] for report in bench.of(AttemptReported, "00000", 2)] == [10, 15, 20]
        delete(saved.path)
        bench.start("00001", config={"num": 4, "by": 5}, restore_from=saved.path, iteration=1)
        ended = bench.finish("00001")
        assert ended.how is AttemptOutcome.FAILED
        assert "no checkpoint at s3://sweeps/a" in ended.error
    finally:
        executor.close()


def report(folder: Path) -> None:
    executor = Local()
    work = Work(trainable=report_and_save, name="s", folder=str(folder / "b"), storage="s3://sweeps/b", num_slots=2)
    executor.open(work)
    try:
        bench = ExecutorBench(executor, work)
        bench.start("00000", config={"num": 3})
        bench.finish("00000")
        second = bench.of(AttemptReported, "00000")[1].saved
        bench.start("00000", attempt=2, config={"num": 3}, restore_from=second, iteration=2)
        bench.finish("00000", 2)
        assert [report.metrics["value"] for report in bench.of(AttemptReported, "00000", 2)] == [2]
    finally:
        executor.close()
