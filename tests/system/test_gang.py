from __future__ import annotations

import os
import signal
import time

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass.record import events
from windlass.record.state import State

pytestmark = pytest.mark.system

PLACE = "import os, signal, sys, time\nfrom windlass import report\nplace = report.place()\n"


def test_the_first_failure_is_the_cause(stage: Stage) -> None:
    text = (
        PLACE
        + """
print("hello", place.rank)
if place.rank == 0:
    open("here", "w").close()
else:
    while not os.path.exists("here"): time.sleep(0.02)
    raise ValueError("the loss is not finite")
time.sleep(600)
"""
    )
    run = stage.launch(stage.python(text, nodes=2))
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.code, end.rank) == ("user-error", 1, 1)
    assert end.message == "exit code 1: ValueError: the loss is not finite"
    assert end.tail[0] == "hello 1"
    assert end.traceback.startswith("Traceback (most recent call last):")
    assert end.traceback.endswith("ValueError: the loss is not finite")
    assert end.host
    other = stage.attempts(run)[0].replicas[0].end
    assert other is not None
    assert other.cause == "sibling-failed"


def test_a_signal_is_named(stage: Stage) -> None:
    run = stage.launch(stage.python("import os; os.abort()"))
    stage.end(run)
    (end,) = stage.ends(run)
    assert (end.cause, end.code, end.message) == ("user-error", -signal.SIGABRT, "ended by SIGABRT")


def test_a_command_that_is_not_there(stage: Stage) -> None:
    run = stage.launch(stage.task(["no-such-program", "x"]))
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.code) == ("start-failed", 127)
    assert "no-such-program" in end.message


def test_a_missing_replica_is_named(stage: Stage) -> None:
    spec = stage.task("true", nodes=3, ready_timeout="2s") | {"retry": {"interrupted": 0}}
    stage.experiment(spec)
    run = stage.launch(spec)
    folder = run.folder.jobs / "main-1"
    (folder / "guard-2.lock").mkdir()  # its guard cannot even begin
    assert stage.end(run) is State.FAILED, stage.story(run)
    (end,) = stage.ends(run)
    assert (end.cause, end.rank) == ("never-ready", 2)
    assert end.message == "replica 2 of 3 not ready after 2 s"
    assert stage.starts_of() == []


def test_stop_asks_then_kills(stage: Stage) -> None:
    text = (
        PLACE
        + """
def ask(number, frame):
    print("asked", flush=True)
signal.signal(signal.SIGTERM, ask)
print("here", flush=True)
while True: time.sleep(1)
"""
    )
    run = stage.launch(stage.python(text, grace="1s"))
    stage.wait_for_line(run, "here")
    began = time.monotonic()
    run.stop()
    assert stage.end(run) is State.STOPPED
    assert time.monotonic() - began > 1.0
    assert stage.log(run) == "here\nasked\n"
    assert stage.causes(run) == ["cancelled"]
    assert run.facts.cause == "cancelled"


def test_stop_reaches_what_a_shell_line_started(stage: Stage) -> None:
    run = stage.launch(stage.task("echo here; while true; do sleep 0.2; done", grace="300s"))
    stage.wait_for_line(run, "here")
    began = time.monotonic()
    run.stop()
    assert stage.end(run) is State.STOPPED
    assert time.monotonic() - began < 200.0


STEPS = (
    PLACE
    + """
step = 0
latest = report.latest_checkpoint()
if latest: step = int((latest / "step").read_text())
print("from", step, flush=True)
while step < int(sys.argv[1]) or place.attempt <= int(sys.argv[2]):
    step += 1
    report.progress("step", step=step)
    time.sleep(0.1)
    if report.should_stop():
        with report.checkpoint_dir(step=step) as folder: (folder / "step").write_text(str(step))
        sys.exit(75)
print("done", step)
"""
)


def test_stop_with_a_checkpoint_and_resume(stage: Stage) -> None:
    stage.write("user.py", STEPS)
    run = stage.launch(
        stage.task([PYTHON, "-u", "user.py", "25", "1"], grace="60s")
    )  # the first attempt goes on until it is stopped
    stage.wait_for_line(run, "from 0")
    run.stop(checkpoint=True)
    assert stage.end(run) is State.STOPPED
    step = run.facts.task("main").last_checkpoint.step
    assert step > 0
    run.resume()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.log(run, attempt=2) == f"from {step}\ndone {max(step, 25)}\n"


def test_walltime_goes_on_inside_the_job(stage: Stage) -> None:
    stage.write("user.py", STEPS)
    spec = stage.task([PYTHON, "-u", "user.py", "80", "0"]) | {"limit": {"per_job": "6s"}}
    run = stage.launch(spec)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    causes = stage.causes(run)
    assert set(causes[:-1]) == {"walltime"}
    assert causes[-1] == "ok"
    assert stage.log(run, attempt=len(causes)).endswith("done 80\n")
    assert run.facts.task("main").newest_job == 1


def test_the_time_limit_ends_the_task(stage: Stage) -> None:
    run = stage.launch(stage.task("sleep 600") | {"limit": {"time": "1s"}})
    assert stage.end(run) is State.FAILED
    assert run.facts.cause == "timeout"
    assert stage.causes(run) == ["timeout"]


def attempt_text(body: str) -> str:
    return PLACE + "attempt = place.attempt\n" + body


def test_failures_draw_on_their_budget(stage: Stage) -> None:
    run = stage.launch(stage.python("import sys; sys.exit(3)") | {"retry": {"failed": 1}})
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["user-error", "user-error"]
    assert [end.code for end in stage.ends(run)] == [3, 3]


def test_interruptions_do_not(stage: Stage) -> None:
    text = attempt_text("os.kill(os.getpid(), 9) if attempt < 3 else None\n")
    run = stage.launch(stage.python(text) | {"retry": {"failed": 0, "interrupted": 5}})
    assert stage.end(run) is State.SUCCEEDED
    assert stage.causes(run) == ["killed", "killed", "ok"]


def test_no_progress_ends_a_doomed_loop(stage: Stage) -> None:
    run = stage.launch(stage.python("import os; os.kill(os.getpid(), 9)"))
    assert stage.end(run) is State.FAILED
    assert run.facts.cause == "no-progress"
    assert stage.causes(run) == ["killed"] * 3


def test_exit_75_is_an_interruption(stage: Stage) -> None:
    run = stage.launch(stage.python(attempt_text("sys.exit(75 if attempt == 1 else 0)\n")))
    assert stage.end(run) is State.SUCCEEDED
    assert stage.causes(run) == ["preempted", "ok"]


def test_exit_93_is_never_retried(stage: Stage) -> None:
    run = stage.launch(stage.python("import sys; sys.exit(93)") | {"retry": {"failed": 5}})
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["do-not-retry"]


def test_what_the_code_says_outranks_a_launchers_code(stage: Stage) -> None:
    text = attempt_text("if attempt == 1:\n  report.finish(75, message='the node told me to go')\n  sys.exit(1)\n")
    run = stage.launch(stage.python(text))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["preempted", "ok"]
    assert stage.ends(run)[0].message == "the node told me to go"


def test_retry_resets_the_budgets(stage: Stage) -> None:
    text = attempt_text("sys.exit(0 if attempt == 3 else 3)\n")
    run = stage.launch(stage.python(text) | {"retry": {"failed": 1}})
    assert stage.end(run) is State.FAILED
    run.retry()
    assert stage.end(run) is State.SUCCEEDED
    assert stage.causes(run) == ["user-error", "user-error", "ok"]


def test_what_comes_after_a_failure_never_starts(stage: Stage) -> None:
    tasks = {
        "prep": {"run": "sleep 0.2; exit 4"},
        "train": {"run": "echo never", "after": "prep"},
        "score": {"run": "echo never", "after": "train"},
    }
    run = stage.launch({"tasks": tasks})
    assert stage.end(run) is State.FAILED
    assert run.facts.cause == "user-error"
    for name in ("train", "score"):
        end = run.facts.task(name).end
        assert end is not None
        assert end[1] == "sibling-failed"
        assert not (run.folder.logs / "1" / name).exists()
    assert "task prep" in run.facts.task("train").end[2]  # type: ignore[index]


def test_tasks_in_order(stage: Stage) -> None:
    tasks = {
        "prep": {"run": "sleep 0.5; echo data > ${out}/file"},
        "train": {"run": "cat ${tasks.prep.out}/file", "after": "prep"},
    }
    run = stage.launch({"tasks": tasks})
    assert stage.end(run) is State.SUCCEEDED
    assert stage.log(run, task="train") == "data\n"
    assert stage.records(run, events.TASK_QUEUED)[0].data["reason"] == "waits for task prep"


def test_a_terminated_supervisor_hands_the_gang_over(stage: Stage) -> None:
    text = attempt_text("print('here', flush=True)\ntime.sleep(600 if attempt == 1 else 0)\n")
    run = stage.launch(stage.python(text, nodes=2))
    stage.wait_for_line(run, "here")
    stage.wait_for_line(run, "here", rank=1)
    os.kill(stage.ours(run, "guard", rank=1), signal.SIGTERM)
    until(lambda: len(stage.ends(run)) > 0, "the first attempt ends")
    (end, *_) = stage.ends(run)
    assert (end.cause, end.rank) == ("preempted", 1)
    assert "SIGTERM" in end.message
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
