"""What a node must show before user code runs on it (`health.preflight`), on a real Slurm with a node that lacks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_a_node_that_is_unfit_runs_nothing_and_is_avoided(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    stage, local = slurm_stage, tmp_path / "local"
    local.mkdir()
    profile = stage.home.path / "sites" / "lab.yaml"
    text = profile.read_text().replace("stall: 12s}", f'stall: 12s, node_local: "{local}"}}')
    profile.write_text(text + "health: {preflight: [gpu-count, disk, port, clock], exclude_after: 1}\n")
    stage.lab.run("n1", ["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(local)])
    try:
        run = stage.start(stage.task("hostname; echo once >> $WINDLASS_OUT/marks", nodes=3, gpus=1))
        assert stage.end(run, 240) is State.SUCCEEDED, stage.story(run)
    finally:
        stage.lab.run("n1", ["umount", str(local)])
    assert stage.causes(run) == ["node-unhealthy", "ok"]
    end = stage.ends(run)[0]
    assert end.host == "n1"
    assert end.message == f"the node's own folder {local} has only 4 MiB free, or is not writable"
    assert list(run.facts.task("main").avoided) == ["n1"]
    assert (run.output("main") / "marks").read_text() == "once\n" * 3, "the first attempt ran no user code"
    stage.wait_until_queue_is_empty()
