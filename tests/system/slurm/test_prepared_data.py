"""Prepared data on a real Slurm: built in the partition for work without GPUs, before a GPU is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import until
from windlass import Options
from windlass.record.state import State

pytestmark = pytest.mark.system


def spec_of(raw: Path, gate: Path) -> dict[str, Any]:
    build = (
        f"cat ${{from}} > ${{out}}/a; until test -e {gate}; do sleep 0.1; done; echo $SLURM_JOB_PARTITION > ${{out}}/b"
    )
    train = {"run": "cat ${data.tokens}/*; echo gpus $CUDA_VISIBLE_DEVICES", "gpus": 2, "cpus": 1, "grace": "1s"}
    return {"data": {"tokens": {"from": f"file:{raw}", "build": build, "code": "trainer.py"}}, "tasks": {"main": train}}


def test_a_build_runs_on_the_cpu_partition_while_no_gpu_is_asked_for(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    stage, raw, gate = slurm_stage, tmp_path / "raw", tmp_path / "gate"
    raw.write_text("raw\n")
    stage.write_site(**{"  partition: main\n": "  partition: main\n  cpu_partition: short\n"})
    run = stage.start(spec_of(raw, gate))
    until(lambda: run.facts.task("data.tokens").state is State.RUNNING, "the build runs", timeout_s=300)
    waiting = stage.lab.job(run.facts.task("main").jobs[1].backend_id)
    assert (waiting["JobState"], waiting["Reason"], waiting["Partition"]) == ("PENDING", "JobHeldUser", "main")
    gate.touch()
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    assert stage.log(run) == "raw\nshort\ngpus 0,1\n"
    again = stage.start(spec_of(raw, gate))
    assert list(again.facts.tasks) == ["main"]
    assert stage.end(again, 300) is State.SUCCEEDED
    stage.wait_until_queue_is_empty()


def test_a_site_over_ssh_builds_there_and_knows_what_it_has(far_stage: SlurmStage, tmp_path: Path) -> None:
    stage, raw, gate = far_stage, tmp_path / "raw", tmp_path / "gate"
    raw.write_text("far\n")
    gate.touch()
    options = Options(on=SITE, snapshot=True)
    run = stage.launch(spec_of(raw, gate), options=options)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    (ready,) = (tmp_path / "cluster" / "windlass" / "data" / "built").glob("*/.ready")
    again = stage.launch(spec_of(raw, gate), options=options)
    assert list(again.facts.tasks) == ["main"]
    assert again.plan.pins.builds["tokens"].digest == json.loads(ready.read_bytes())["digest"]
    assert stage.end(again, 300) is State.SUCCEEDED
    stage.wait_until_queue_is_empty()
