"""`windlass gc --images` against a real engine: what a kept run pins stays, what nobody needs goes."""

from __future__ import annotations

import json
import os

import pytest

from tests.lab.docker import DockerLab
from tests.runs.journals import RunScript
from tests.system.images.conftest import Project
from windlass.cli import main
from windlass.pin.image.pinned import ImagePin
from windlass.pin.image.records import record_path

pytestmark = pytest.mark.system


def used_long_ago(project: Project, pin: ImagePin) -> None:
    os.utime(record_path(project.home.cache, pin.key, "docker"), (1e9, 1e9))


def test_an_image_that_a_kept_run_pins_stays_and_one_that_nobody_needs_goes(
    project: Project, at_docker: DockerLab, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned, kept = project.build()
    run = RunScript(project.home, "exp-00000001").submit().start().end().close()
    (run.path / "plan.json").write_text(json.dumps({"name": "exp", "pins": {"image": {"key": pinned.key}}}))
    project.write(train_py="print('two')\n")
    unpinned, old = project.build()
    project.write(train_py="print('three')\n")
    _, fresh = project.build()
    for pin in (pinned, unpinned):
        used_long_ago(project, pin)

    def present() -> list[bool]:
        found = at_docker.command("docker", "images", "--quiet", "--no-trunc").split()
        return [image.image_id in found for image in (kept, old, fresh)]

    assert main(["gc", "--images", "--dry-run"]) == 0
    assert present() == [True, True, True]
    assert main(["gc", "--images"]) == 0
    assert present() == [True, False, True]
    assert "exp-00000001 pins it (--drop-pinned)" in capsys.readouterr().out
    assert main(["gc", "--images", "--drop-pinned"]) == 0
    assert present() == [False, False, True]
