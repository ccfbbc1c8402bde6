"""The Python API on real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import windlass
from tests.system.stage import PYTHON, Stage, until
from windlass import Options, Run
from windlass.core.errors import NotFoundError, WaitTimeoutError
from windlass.record.state import State
from windlass.runs.store import run_ids

pytestmark = pytest.mark.system

TRAIN = """
import os
from windlass import report
for step in range(3):
    print("step", step, flush=True)
    report.metrics({"loss": 1.0 / (step + 1)}, step=step)
open(os.environ["WINDLASS_OUT"] + "/model", "w").write("weights")
"""
WAITING = "import time; print('waiting', flush=True); time.sleep(100)"
GATED = "import os, sys; print('tries', flush=True); sys.exit(0 if os.path.exists('gate') else 5)"


def test_ten_lines_of_python(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.write("train.py", TRAIN)
    monkeypatch.chdir(stage.code)
    experiment = windlass.Experiment(name="hello", run=(PYTHON, "train.py"), params={"lr": 0.1})
    plan = experiment.plan(Options(allow_dirty=True, dry_run=True))
    assert run_ids(stage.home) == []
    run = windlass.launch(experiment, options=Options(allow_dirty=True))
    lines = [(line.task, line.rank, line.text) for line in run.logs(follow=True)]
    assert run.state is State.SUCCEEDED, lines
    assert run.plan.plan_hash == plan.plan_hash
    assert lines == [("main", 0, f"step {step}") for step in range(3)]
    assert [(point.step, point.value) for point in run.metrics("loss")] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert (run.outputs["main"] / "model").read_text() == "weights"
    assert run.output("main") == run.outputs["main"]
    assert {finding.status for finding in run.check()} <= {"ok", "skipped"}
    assert Run.find("hello").id == run.id


def test_launch_takes_an_experiment_a_file_or_a_prepared_plan(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(allow_dirty=True)
    monkeypatch.chdir(stage.code)
    file = Path(stage.write("experiment.yaml", "name: hello\nrun: 'true'\n"))
    prepared = windlass.load(file, options=options)
    for run in (
        windlass.launch(windlass.Experiment(name="hello", run="true"), options=options),
        windlass.launch(file, options=options),
        windlass.launch(str(file), ["why=again"], options=options),
        windlass.launch(prepared),
    ):
        assert run.wait() is State.SUCCEEDED
    with pytest.raises(ValueError, match="already has its options"):
        windlass.launch(prepared, options=options)
    with pytest.raises(ValueError, match="overrides apply to a file"):
        windlass.launch(prepared, ["why=again"])


def test_names_that_a_run_does_not_have(stage: Stage) -> None:
    run = stage.launch(stage.task(["true"]))
    assert run.wait() is State.SUCCEEDED
    with pytest.raises(NotFoundError) as caught:
        run.output("mian")
    assert (caught.value.message, caught.value.hint) == (f"run {run.id} has no task `mian`", "did you mean `main`?")
    with pytest.raises(NotFoundError) as caught:
        run.output("xyzzy")
    assert caught.value.hint == "its tasks are: main"
    assert caught.value.code == "unknown-task"
    with pytest.raises(NotFoundError, match="no run 'plaice'"):
        Run.find("plaice", stage.home)


def test_waiting_has_an_end_and_the_run_has_not(stage: Stage) -> None:
    run = stage.launch(stage.python(WAITING))
    stage.wait_for_user(run)
    with pytest.raises(WaitTimeoutError, match=f"run {run.id} has not ended after 0.1 s") as caught:
        run.wait(timeout_s=0.1)
    assert caught.value.hint == "it is still running"
    assert run.state is State.RUNNING
    run.stop(now=True)
    assert run.facts.state is State.STOPPED
    assert stage.survivors(run) == {}


def test_stop_and_resume(stage: Stage) -> None:
    run = stage.launch(stage.python(WAITING))
    stage.wait_for_line(run, "waiting")
    run.stop()
    assert run.wait(timeout_s=300) is State.STOPPED
    assert stage.survivors(run) == {}
    assert run.resume() == ["main"]
    stage.wait_for_line(run, "waiting", attempt=2)
    assert run.state is State.RUNNING
    run.stop(now=True)
    assert run.facts.state is State.STOPPED
    assert stage.survivors(run) == {}


def test_retry_after_a_failure(stage: Stage) -> None:
    run = stage.launch(stage.python(GATED))
    assert run.wait(timeout_s=300) is State.FAILED
    assert run.facts.cause == "user-error"
    stage.write("gate", "")
    assert run.retry() == ["main"]
    assert run.wait(timeout_s=300) is State.SUCCEEDED
    assert [end.code for end in stage.ends(run)] == [5, 0]
    assert run.reconcile() == []


def test_killed_before_it_began(stage: Stage) -> None:
    run = stage.launch(stage.python(WAITING))
    run.stop(now=True)
    assert run.facts.state is State.STOPPED
    assert stage.survivors(run) == {}


def test_two_runs_and_what_differs(stage: Stage) -> None:
    spec = {"run": [PYTHON, "-c", "print(${params.lr})"], "params": {"lr": 1}}
    first = stage.launch(spec)
    second = first.rerun(["params.lr=2"])
    assert {first.wait(timeout_s=300), second.wait(timeout_s=300)} == {State.SUCCEEDED}
    assert [stage.log(run) for run in (first, second)] == ["1\n", "2\n"]
    assert any("lr" in str(difference) for difference in first.diff(second))
    assert first.diff(first) == []


def test_a_run_goes_on_without_the_process_that_launched_it(stage: Stage, tmp_path: Path) -> None:
    stage.write("train.py", "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.02)\n")
    path = stage.experiment({"run": [PYTHON, "train.py"]})
    subprocess.run([PYTHON, str(Path(__file__).parents[1] / "system" / "launcher.py"), str(path)], check=True)
    (run,) = stage.runs("play")
    until(lambda: run.state is State.RUNNING, "the run runs")
    stage.write("gate", "")
    assert run.wait(timeout_s=300) is State.SUCCEEDED
