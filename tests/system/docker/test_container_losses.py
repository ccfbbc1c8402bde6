"""Containers that are stopped or killed, and what is left when everything of ours is killed: nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.docker import DockerLab
from tests.system.stage import Stage, until
from tests.system.trainer import EVERY, Training
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State

pytestmark = pytest.mark.system

Launch = Callable[..., Run]
NUM_STEPS = 4 * EVERY

SAVES = """
import os, pathlib, time
from windlass import report
folder = pathlib.Path(os.environ["WINDLASS_CHECKPOINTS"])
print("begun")
for step in range(1000):
    report.progress("step", step=step)
    if report.should_stop():
        (folder / "saved").write_text(str(step))
        print("saved")
        raise SystemExit(75)
    time.sleep(0.05)
"""


def test_a_stop_lets_the_code_save_through_the_report(stage: Stage, launch: Launch) -> None:
    stage.write("saves.py", SAVES)
    run = launch(stage.task(["python3", "-u", "saves.py"]))
    stage.wait_for_line(run, "begun")
    run.stop()
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert "saved" in stage.log(run)


def test_a_training_that_loses_its_container_resumes_exactly(
    stage: Stage, launch: Launch, at_docker: DockerLab
) -> None:
    hold_at = EVERY + 1  # one step after a checkpoint: that step is repeated, the next checkpoint never made
    trainer = ["python3", "-u", "trainer.py", str(NUM_STEPS), "0", "0", str(hold_at)]
    run = launch(stage.task(trainer), vars={"STARTS": "/dev/null"})
    stage.wait_for_line(run, f"step {hold_at} ")
    [container] = at_docker.command("docker", "ps", "--quiet").split()
    at_docker.command("docker", "kill", container)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["killed", "ok"]
    assert stage.log(run, attempt=2).startswith(f"step {hold_at} ")
    assert (run.output("main") / "digest-0").read_text() == _digest_of_training()


def _digest_of_training() -> str:
    training = Training()
    for _ in range(NUM_STEPS):
        training.advance()
    return training.digest()


def test_nothing_is_left_when_everything_of_ours_is_killed(stage: Stage, launch: Launch, at_docker: DockerLab) -> None:
    run = launch(stage.task("setsid sleep 300 & sleep 300", nodes=2), image={"network": "private"})
    until(lambda: len(at_docker.command("docker", "ps", "--quiet").split()) == 2, "both containers run")
    for rank in range(2):
        for pid in [stage.ours(run, "guard", rank), stage.ours(run, "supervisor", rank), stage.user(run, rank)]:
            send_signal(pid, 9)
    assert len(at_docker.left_overs()) == 3
    run.stop(now=True)
    assert at_docker.left_overs() == []
    assert stage.survivors(run) == {}


def test_a_killed_supervisor_goes_on_with_the_same_container(
    stage: Stage, launch: Launch, at_docker: DockerLab
) -> None:
    run = launch(stage.task("echo begun; while [ ! -e $WINDLASS_OUT/go ]; do sleep 0.1; done; echo done"))
    stage.wait_for_line(run, "begun")
    before = at_docker.command("docker", "ps", "--quiet")
    send_signal(stage.ours(run, "supervisor"), 9)
    (run.output("main") / "go").touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert before
    assert stage.log(run) == "begun\ndone\n"
    assert len(stage.attempts(run)) == 1
