from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.system.stage import PYTHON, Stage, living, until
from windlass.record.state import State

pytestmark = pytest.mark.system

# Four ways out of a process group, and one out of reach of SIGTERM; each keeps the marker in its command line.
ESCAPES = """
import os, signal, subprocess, sys, time

marker, sleeper = sys.argv[1], [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]]
subprocess.Popen(sleeper, start_new_session=True)
subprocess.Popen(["nohup", *sleeper], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf, marker])
subprocess.Popen(sleeper, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleeper)
    os._exit(0)
os.wait()
"""

NUM_ESCAPED = 5


def marked(marker: str) -> list[int]:
    return [pid for pid, line in living(marker).items() if "time.sleep(600)" in line]


def play(stage: Stage, tmp_path: Path, ending: str, **settings: object) -> tuple[State, str]:
    marker = f"escaped-from-{tmp_path.name}"
    stage.write("user.py", ESCAPES + ending)
    run = stage.launch(stage.task([PYTHON, "-u", "user.py", marker], **settings) | {"retry": {"interrupted": 0}})
    stage.wait_for_line(run, "all out")
    until(lambda: len(marked(marker)) >= NUM_ESCAPED or run.state.is_terminal, "all have escaped")
    if "wait" in ending:
        os.kill(stage.user(run), 9)
    state = stage.end(run)
    assert marked(marker) == []
    assert stage.survivors(run) == {}
    return state, stage.causes(run)[0]


def test_nothing_outlives_a_success(stage: Stage, tmp_path: Path) -> None:
    assert play(stage, tmp_path, "print('all out'); time.sleep(0.5)") == (State.SUCCEEDED, "ok")


def test_nothing_outlives_a_killed_rank(stage: Stage, tmp_path: Path) -> None:
    assert play(stage, tmp_path, "print('all out'); time.sleep(600)  # wait") == (State.FAILED, "killed")


def test_nothing_outlives_a_stop(stage: Stage, tmp_path: Path) -> None:
    marker = f"stopped-{tmp_path.name}"
    stage.write("user.py", ESCAPES + "print('all out'); time.sleep(600)")
    run = stage.launch(stage.task([PYTHON, "-u", "user.py", marker]))
    stage.wait_for_line(run, "all out")
    run.stop()
    assert stage.end(run) is State.STOPPED
    assert marked(marker) == []


def test_nothing_outlives_a_kill_by_force(stage: Stage, tmp_path: Path) -> None:
    marker = f"forced-{tmp_path.name}"
    stage.write("user.py", ESCAPES + "print('all out'); time.sleep(600)")
    run = stage.launch(stage.task([PYTHON, "-u", "user.py", marker], nodes=2))
    stage.wait_for_line(run, "all out")
    stage.wait_for_line(run, "all out", rank=1)
    run.stop(now=True)
    assert run.state is State.STOPPED, stage.story(run)
    assert marked(marker) == []
    assert stage.survivors(run) == {}


def test_guard_and_supervisor_gone_the_next_job_sweeps(stage: Stage) -> None:
    spec = stage.python(
        "import time; from windlass import report; print('here'); time.sleep(600 if report.place().attempt == 1 else 0)"
    )
    run = stage.launch(spec)
    stage.wait_for_line(run, "here")
    first = stage.user(run)
    for what in ("guard", "supervisor"):
        os.kill(stage.ours(run, what), 9)
    assert stage.end(run) is State.SUCCEEDED
    assert stage.causes(run) == ["killed", "ok"]
    assert not Path(f"/proc/{first}/cmdline").exists() or not Path(f"/proc/{first}/cmdline").read_bytes()
    assert stage.survivors(run) == {}


def test_a_process_tree_that_is_killed_is_called_that(stage: Stage) -> None:
    spec = stage.python("import time; print('here'); time.sleep(600)") | {"retry": {"interrupted": 0}}
    run = stage.launch(spec)
    stage.wait_for_line(run, "here")
    guard, supervisor, user = stage.ours(run, "guard"), stage.ours(run, "supervisor"), stage.user(run)
    for pid in (guard, supervisor, user):
        os.kill(pid, 9)
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert end.cause == "killed"
    assert end.message == (f"killed from outside: guard {guard}, supervisor {supervisor} and the code's process {user}")
    replica = stage.attempts(run)[0].replicas[0].end
    assert replica is not None
    assert replica.cause == "killed"


def test_a_replica_whose_processes_are_killed_is_called_that(stage: Stage) -> None:
    run = stage.launch(stage.python("import time; print('here'); time.sleep(600)", nodes=2))
    for rank in (0, 1):
        stage.wait_for_line(run, "here", rank=rank)
    guard, supervisor = stage.ours(run, "guard", 1), stage.ours(run, "supervisor", 1)
    for pid in (guard, supervisor, stage.user(run, 1)):
        os.kill(pid, 9)
    until(lambda: bool(stage.ends(run)), "the attempt ends", story=lambda: stage.story(run))
    (end,) = stage.ends(run)
    assert (end.cause, end.rank) == ("killed", 1)
    assert end.message == f"killed from outside: guard {guard} and supervisor {supervisor} of replica 1"


def test_somebody_elses_processes_survive(stage: Stage) -> None:
    stage.write("user.py", "import time; print('here'); time.sleep(600)")
    line = [PYTHON, "-u", "user.py"]
    before = subprocess.Popen(line, cwd=stage.code, stdout=subprocess.DEVNULL)
    run = stage.launch(stage.task(line))
    stage.wait_for_line(run, "here")
    beside = subprocess.Popen(line, cwd=stage.code, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        for what in ("guard", "supervisor"):
            os.kill(stage.ours(run, what), 9)
        run.stop(now=True)
        assert run.state.is_terminal
        assert stage.survivors(run) == {}
        assert [before.poll(), beside.poll()] == [None, None]
    finally:
        for process in (before, beside):
            process.kill()
            process.wait()


def test_a_closed_shell_ends_nothing(stage: Stage, tmp_path: Path) -> None:
    path = stage.experiment(stage.python("import time; time.sleep(1.5); print('done')"))
    launcher = Path(__file__).with_name("launcher.py")
    shell = subprocess.Popen(["/bin/sh", "-c", f"{PYTHON} {launcher} {path}; kill -HUP 0"], start_new_session=True)
    shell.wait(timeout=300)
    (run,) = stage.runs("play")
    until(lambda: run.state.is_terminal, "the run ends without any client")
    assert run.state is State.SUCCEEDED
    assert stage.log(run) == "done\n"


def test_a_child_without_our_token_is_swept_when_guard_and_supervisor_are_killed(stage: Stage, tmp_path: Path) -> None:
    marker = f"cleared-{tmp_path.name}"
    sleeper = [PYTHON, "-c", "import time; time.sleep(600)", marker]
    stage.write(
        "user.py",
        "import os, subprocess, time; from windlass import report\n"
        f"if report.place().attempt == 1: subprocess.Popen({sleeper!r}, env={{}})\n"
        "print('here'); time.sleep(600 if report.place().attempt == 1 else 0)",
    )
    run = stage.launch(stage.task([PYTHON, "-u", "user.py"]))
    stage.wait_for_line(run, "here")
    until(lambda: len(marked(marker)) == 1, "the child sleeps")
    os.kill(stage.ours(run, "guard"), 9)
    os.kill(stage.ours(run, "supervisor"), 9)
    assert stage.end(run) is State.SUCCEEDED
    assert stage.causes(run) == ["killed", "ok"]
    assert marked(marker) == []
