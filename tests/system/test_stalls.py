from __future__ import annotations

import os
import signal

import pytest

from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

STEPS = """
import time
from windlass import report
for step in range(5):
    report.progress("step", step=step)
    time.sleep(0.05)
print("steps done")
"""

BARRIER = (
    STEPS
    + """
import os, socket
place = report.place()
if place.rank == 0:
    with socket.create_server((place.address, place.port)) as server:
        server.accept()            # rank 1 never arrives
elif place.attempt == 1:
    while True:                    # it believes to be training, and says so
        report.progress("step", step=5)
        time.sleep(0.05)
"""
)

STALL = {"stall": {"floor": "1s"}}
ONCE = {"retry": {"interrupted": 0}}


def test_a_stopped_process_is_found(stage: Stage) -> None:
    spec = stage.python("import time; print('here'); time.sleep(600)", **STALL) | ONCE
    run = stage.launch(spec)
    stage.wait_for_line(run, "here")
    os.kill(stage.user(run), signal.SIGSTOP)
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["stalled"]
    assert stage.ends(run)[0].message == "the process is stopped (SIGSTOP)"
    assert stage.survivors(run) == {}


def test_a_stopped_child_of_a_shell_is_found(stage: Stage) -> None:
    stage.write("user.py", STEPS + "time.sleep(600)\n")
    spec = stage.task("python3 user.py; true", **STALL) | ONCE
    run = stage.launch(spec)
    stage.wait_for_line(run, "steps done")
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["stalled"]


def test_a_busy_loop_is_found_and_its_rank_named(stage: Stage) -> None:
    text = STEPS + "while report.place().rank == 1: pass\ntime.sleep(2 * report.place().attempt)\n"
    spec = stage.python(text + "print('past')\n", nodes=2, **STALL) | ONCE
    run = stage.launch(spec)
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert end.cause == "stalled"
    assert "in phase step, last step 4" in end.message
    assert stage.survivors(run) == {}


def test_a_blocked_collective_is_found_and_the_run_goes_on(stage: Stage) -> None:
    text = BARRIER.replace("server.accept()", "server.accept() if place.attempt == 1 else None")
    run = stage.launch(stage.python(text, nodes=2, stall={"floor": "4s"}))  # a busy machine may hold up the second
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["stalled", "ok"]
    assert stage.ends(run)[0].rank == 0


def test_code_that_never_reports_is_not_watched(stage: Stage) -> None:
    run = stage.launch(stage.python("import time; time.sleep(3)", **STALL))
    assert stage.end(run) is State.SUCCEEDED


def test_a_disabled_watchdog_looks_on(stage: Stage) -> None:
    spec = stage.python(STEPS + "time.sleep(3)\n", stall={"floor": "1s", "enabled": False})
    assert stage.end(stage.launch(spec)) is State.SUCCEEDED


def test_a_stall_is_found_by_a_supervisor_that_came_back(stage: Stage) -> None:
    spec = stage.python(STEPS + "time.sleep(600)\n", **STALL) | ONCE
    run = stage.launch(spec)
    stage.wait_for_line(run, "steps done")
    os.kill(stage.ours(run, "supervisor"), signal.SIGKILL)
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["stalled"]
    assert "phase step, last step 4" in stage.ends(run)[0].message
    assert stage.survivors(run) == {}
