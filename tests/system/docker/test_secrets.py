"""Secrets in containers: code gets them as variables and as files, and the engine never hears of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.docker import DockerLab
from tests.system.stage import Stage, until
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State
from windlass.secrets.lookup import open_secrets

pytestmark = pytest.mark.system

MARK = f"finch{os.getpid()}x5f1d"  # nobody else's: other tests build images with planted words in the same engine
CANARY = f'{MARK}-it\'s "$HOME" `id`'
TELLS = 'test "$PLAIN" = "$(cat "$FILE")" && echo same; echo "length $${#PLAIN}"; while [ ! -e $WINDLASS_OUT/go ]; do sleep 0.1; done'


@pytest.fixture
def secrets(stage: Stage) -> list[object]:
    for name in ("PLAIN", "FILE"):
        open_secrets(stage.home.path).store.set(name, CANARY.encode())
    return ["PLAIN", {"name": "FILE", "as": "file"}]


def test_a_secret_reaches_code_and_nothing_of_the_engine(
    stage: Stage, launch: Callable[..., Run], at_docker: DockerLab, secrets: list[object], tmp_path: Path
) -> None:
    run = launch(stage.task(TELLS), secrets=secrets)
    stage.wait_for_line(run, f"length {len(CANARY)}")
    [container] = at_docker.command("docker", "ps", "--quiet").split()
    assert "same" in stage.log(run)
    assert MARK not in json.dumps(at_docker.inspect(container))
    assert _holding(at_docker.folder) == []
    (run.output("main") / "go").touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert _holding(at_docker.folder) + _holding(run.folder.path) == []
    delivery = Path(json.loads((run.folder.path / "places.json").read_text())["delivery"])
    assert list(delivery.parent.glob(f"{delivery.stem}*")) == []


def test_the_file_with_secrets_goes_when_everything_is_killed(
    stage: Stage, launch: Callable[..., Run], at_docker: DockerLab, secrets: list[object]
) -> None:
    run = launch(stage.task(TELLS), secrets=secrets)
    stage.wait_for_line(run, "length")
    delivery = Path(json.loads((run.folder.path / "places.json").read_text())["delivery"])
    for pid in [stage.ours(run, "guard"), stage.ours(run, "supervisor"), stage.user(run)]:
        send_signal(pid, 9)
    run.stop(now=True)
    until(lambda: not list(delivery.parent.glob(f"{delivery.stem}*")), "the secrets are gone")
    assert at_docker.left_overs() == []


def _holding(folder: Path) -> list[str]:
    """Files below a folder in which the mark is; images of the lab's own making are big and known."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink() and MARK.encode() in path.read_bytes():
                found.append(str(path))
    return found
