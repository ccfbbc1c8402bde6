"""The image of a run is removed and built again: neither `verify` nor `rerun` passes another one for it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.lab.docker import BASE, DockerLab
from tests.system.stage import Stage
from windlass import Options, Run
from windlass.cli.program import main
from windlass.launcher.rerun import prepare_rerun
from windlass.launcher.verify.finding import Finding
from windlass.launcher.verify.verify import verify
from windlass.record.state import State
from windlass.runs.store import RunFolder

pytestmark = pytest.mark.system

# Every build gives another image from the same files.
DOCKERFILE = f"FROM {BASE}\nRUN head -c 16 /dev/urandom > /built\n"


def finding(run: RunFolder) -> Finding:
    (found,) = [each for each in verify(run) if each.what == "image"]
    return found


def image_id(run: RunFolder) -> str:
    image: Any = run.provenance()["image"]
    return str(image["image_id"])


def remove(docker: DockerLab, image: str) -> None:
    docker.command("docker", "image", "rm", "--force", image)
    docker.command("docker", "builder", "prune", "--all", "--force")


def test_another_image_is_not_passed_for_the_one_that_ran(
    stage: Stage, at_docker: DockerLab, capsys: pytest.CaptureFixture[str]
) -> None:
    (stage.code / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run(["git", "init", "-q"], cwd=stage.code, check=True)
    spec = {"env": {"image": {"dockerfile": "Dockerfile"}}, "tasks": {"main": {"run": "true"}}}
    stage.experiment(spec)
    subprocess.run(["git", "add", "-A"], cwd=stage.code, check=True)
    subprocess.run(["git", "commit", "-qm", "x"], cwd=stage.code, check=True)
    run = stage.launch(spec, options=Options(on="docker"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    first = image_id(run.folder)
    assert finding(run.folder).status == "ok"

    remove(at_docker, first)
    gone = finding(run.folder)
    assert gone.status == "failed"
    assert f"missing: the run used {first[:19]}, which is no longer in docker" in gone.message

    prepared = prepare_rerun(run.folder, stage.home)
    note = f"the image of {run.id}, {first[:19]}, is no longer in docker: it is built again and may differ"
    assert note in prepared.plan.notes
    assert main(["rerun", run.id]) == 0
    assert f"note: {note}" in capsys.readouterr().err
    (again,) = [each for each in stage.runs("play") if each.id != run.id]
    second = image_id(again.folder)
    assert second != first
    assert finding(again.folder).status == "ok"
    other = finding(run.folder)
    assert other.status == "failed"
    assert (
        f"rebuilt: the run used {first[:19]}, which is no longer in docker; its name now refers to {second[:19]}"
        in other.message
    )
    assert json.dumps(again.folder.plan()["notes"]).count("is no longer in docker") == 1
    assert isinstance(again, Run)
