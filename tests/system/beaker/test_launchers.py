"""`cluster: mpi` and `cluster: srun` at a Beaker site; torchrun, accelerate and Ray have tests of their own."""

from __future__ import annotations

import pytest

from tests.system.beaker.beaker_stage import BeakerStage
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_mpi_runs_the_command_once_with_a_file_of_all_replicas(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    log = "$WINDLASS_OUT/../../logs/1/main/1.log"  # a command that needs nobody would be over before the others are up
    wait = f'until grep -q "serves replica 0" "{log}"; do sleep 0.1; done'
    line = f'{wait}; echo run >> "$WINDLASS_OUT/runs"; cat ${{hostfile}} > "$WINDLASS_OUT/hosts"'
    run = stage.start(stage.task(line, nodes=2, cluster="mpi", procs_per_node=2))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    hosts = (run.output("main") / "hosts").read_text().splitlines()
    assert sum(int(host.rpartition("slots=")[2]) for host in hosts) == 4
    assert (run.output("main") / "runs").read_text() == "run\n"
    assert "replica 1 serves replica 0" in stage.log(run, rank=1)
    assert stage.finish(run) == "SUCCEEDED"


def test_srun_starts_every_process_in_its_place(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    text = "import os; os.write(1, (' '.join(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')) + '\\n').encode())"
    run = stage.start(stage.python(text, nodes=2, procs_per_node=2, cluster="srun"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert [sorted(stage.log(run, rank=rank).splitlines()) for rank in (0, 1)] == [
        ["0 0 4", "1 1 4"],
        ["2 0 4", "3 1 4"],
    ]
