"""A Beaker site whose storage this machine does not see: a host that sees it is reached over ssh."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.beaker.beaker_stage import SITE, BeakerStage
from tests.system.slurm.command import windlass
from tests.system.stage import PYTHON
from windlass import Options
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system

_SSH = """#!/bin/sh
# The other end of a connection: what a login shell there would be told is told to one here.
for line; do :; done
exec env -u WINDLASS_HOME HOME=/ /bin/sh -c "$line"
"""


@pytest.fixture
def far_stage(tmp_path: Path, fake: FakeBeaker, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BeakerStage]:
    """A stage whose code and WINDLASS_HOME are on this machine alone."""
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(_SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    home = tmp_path / "own"
    home.mkdir()
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    found = BeakerStage(tmp_path / "stage", Home(home), fake, bucket)
    with (home / "sites" / f"{SITE}.yaml").open("a") as file:
        file.write("ssh: me@storage\n")
    subprocess.run(["git", "init", "-q", str(found.code)], check=True)
    yield found
    found.close()


def test_a_run_is_sent_and_its_record_comes_back(far_stage: BeakerStage, bucket: str) -> None:
    stage = far_stage
    stage.fake.add_secret("HF_TOKEN", "hush-hush-99")
    program = (
        "import os, pathlib\nprint('here', pathlib.Path('user.py').resolve(), os.environ['HF_TOKEN'], flush=True)\n"
    )
    stage.write("user.py", program)
    spec = stage.task([PYTHON, "-u", "user.py"], nodes=2)
    spec["env"] = {"secrets": ["HF_TOKEN"]}
    run = stage.launch(spec, options=Options(on=SITE, snapshot=True))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    run.reconcile()
    there = stage.fake.weka(bucket) / "windlass" / "runs" / run.id
    assert there.is_dir()
    printed = windlass("logs", run.id, "--replica", "1")
    assert f"here {there}/code/user.py [secret HF_TOKEN]" in printed.out, str(printed)
