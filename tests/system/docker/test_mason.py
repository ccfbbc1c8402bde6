"""`windlass mason ... --on docker`: the image of the line, on this machine."""

from __future__ import annotations

import pytest

from tests.lab.docker import BASE, DockerLab
from tests.system.mason_stage import MasonProject
from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_a_line_runs_in_its_image(stage: Stage, at_docker: DockerLab) -> None:
    project = MasonProject(stage.code, stage.home)
    stage.write(
        "t.py", "import os, sys; open(sys.argv[1], 'w').write(os.environ['BEAKER_REPLICA_RANK'] + os.getcwd())\n"
    )
    line = (
        f"--cluster ai2/x --image {BASE} --shared_memory 128MiB -- python3 t.py /output/$BEAKER_REPLICA_RANK --num_x 2"
    )
    run = project.launch(line.replace("--shared", "--num_nodes 2 --shared"), "--on", "docker")
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    said = [(run.folder.path / "out" / "main" / str(rank)).read_text() for rank in range(2)]
    assert said == [f"{rank}{stage.code}" for rank in range(2)]
