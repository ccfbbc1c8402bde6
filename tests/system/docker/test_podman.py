"""The other engine: the same job under podman."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.docker import BASE, SAVED, DockerLab
from tests.system.stage import Stage
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

NAME = f"localhost/{BASE}"


@pytest.fixture
def podman(at_docker: DockerLab, need: Callable[[str], None]) -> DockerLab:
    need("podman")
    if not at_docker.command("podman", "images", "--quiet", NAME):
        at_docker.command("podman", "load", "--quiet", "--input", str(SAVED))
    return at_docker


def test_a_run_under_podman_has_limits_and_leaves_nothing(
    stage: Stage, launch: Callable[..., Run], podman: DockerLab
) -> None:
    line = "echo hello; trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done"
    run = launch(stage.task(line), on="podman", image={"name": NAME})
    stage.wait_for_line(run, "hello")
    run.stop()
    assert stage.end(run) in (State.STOPPED, State.SUCCEEDED), stage.story(run)
    assert "bye\n" in stage.log(run)  # standard error comes through a pipe of its own
    big = launch(stage.task(["python3", "-c", "b'a' * 300_000_000"], memory="64MiB"), on="podman", image={"name": NAME})
    assert stage.end(big) is State.FAILED
    assert stage.causes(big) == ["out-of-memory"]
    assert podman.command("podman", "ps", "--all", "--quiet") == ""
