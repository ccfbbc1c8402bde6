"""Whole runs through the real program: what a newcomer types, and what comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROGRAM = str(Path(sys.executable).with_name("windlass"))
DEADLINE_S = 300.0


@pytest.fixture
def project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`windlass init hello`; the environment is this Python, so that nothing is built."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    assert call("init", "hello").returncode == 0
    folder = tmp_path / "hello"
    text = (folder / "experiment.yaml").read_text()
    (folder / "experiment.yaml").write_text(text.replace("env: {uv: .}", "env: {}"))
    commit(folder, "No env")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def slow_project(project: Path) -> Path:
    """The same, whose code takes 0.1 s a step until it is resumed: it still runs when a slow command is done."""
    path = project / "train.py"
    path.write_text(path.read_text().replace("time.sleep(0.02)", "time.sleep(0.1 if saved is None else 0)"))
    commit(project, "Slowly")
    return project


def commit(folder: Path, message: str) -> None:
    words = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", message]
    subprocess.run(words, cwd=folder, check=True)


def call(*arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
    """One command line without a terminal; `code` is what it must end with."""
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S
    )
    assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def shown(run: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(call("show", run, "--json", code=0).stdout)
    return content


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_first_minute_of_a_newcomer(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    call("init", "hello", code=0)
    monkeypatch.chdir(tmp_path / "hello")
    plan = call("plan", "experiment.yaml", "params.steps=40", code=0)
    assert "python train.py --lr 0.1 --steps 40 --seed 1" in plan.stdout
    assert plan.stderr == ""
    assert list((home / "runs").glob("*")) == []
    run = call("launch", "experiment.yaml", "params.steps=40", code=0)
    lines = run.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "20"], ["step", "40"], ["y", "="]]
    said = run.stderr.splitlines()
    name = next(line.split()[0] for line in said if "  plan " in line)
    verdict = said.index(next(line for line in said if line.startswith(f"{name} succeeded after ")))
    assert said[verdict].endswith("1 attempt")
    assert "  metrics  loss 0.1" in said[verdict + 2]
    assert said[-1] == f"  outputs  {home}/runs/{name}/out/train"
    verified = call("verify", name, code=0).stdout
    assert verified.count("failed") == 0
    assert re.search(r"^ok +code +commit [0-9a-f]{12}, tree [0-9a-f]{12}$", verified, re.MULTILINE)
    assert f"outputs train          bit-identical in {name[:6]}" in verified
    assert [name, "succeeded"] in [line.split()[:2] for line in call("ps").stdout.splitlines()[1:]]


def test_detached_then_followed_then_unchanged_then_run_again(project: Path) -> None:
    started = call("launch", "experiment.yaml", "params.steps=60", "-d", code=0)
    name = started.stdout.strip()
    assert f"windlass logs {name} --follow" in started.stderr
    followed = call("logs", name, "--follow", code=0)
    assert followed.stdout.splitlines()[-1].startswith("y = ")
    assert shown(name)["state"] == "succeeded"
    again = call("launch", "experiment.yaml", "params.steps=60", "--if-changed", code=0)
    assert again.stdout == ""
    assert again.stderr.startswith(f"unchanged: {name} succeeded with the same plan")
    rerun = call("rerun", name, "-d", "--json", code=0)
    content = json.loads(rerun.stdout)
    assert (content["schema"], content["plan_hash"]) == ("windlass.launch/1", shown(name)["plan_hash"])
    other = content["run"]
    wait_for(lambda: shown(other)["state"] == "succeeded")
    assert call("diff", name, other, code=0).stdout.count("parameters") == 0
    assert call("rerun", name, "code=/tmp").returncode == 2


def test_a_failure_explains_itself_and_can_be_tried_again(project: Path) -> None:
    failed = call(
        "launch", "--name", "boom", "--", sys.executable, "-c", "raise ValueError('lr must be positive')", code=1
    )
    said = failed.stderr.splitlines()
    name = next(line.split()[0] for line in said if "  plan " in line)
    assert any(line.startswith(f"{name} failed (user-error) after ") for line in said)
    assert (
        failed.stderr.count("ValueError: lr must be positive") == 1
    )  # in the end of the attempt; the log has the rest
    assert failed.stdout.count("ValueError: lr must be positive") == 1
    page = call("show", name, code=0).stdout
    assert "state        failed: user-error" in page
    assert "             ValueError: lr must be positive" in page
    retried = call("retry", name, code=1)
    assert "attempt 2 started" in retried.stderr
    assert "attempt 1 started" not in retried.stderr
    assert call("resume", name).returncode == 8


def test_stop_saves_and_resume_goes_on(slow_project: Path) -> None:
    name = call("launch", "experiment.yaml", "params.steps=2400", "-d", code=0).stdout.strip()
    wait_for(lambda: "step" in call("logs", name).stdout)
    stopped = call("stop", name, "--checkpoint", "--wait", "300s", code=0)
    assert stopped.stderr.splitlines()[-1] == f"{name} stopped"
    task = shown(name)["tasks"]
    assert isinstance(task, dict)
    step = task["train"]["checkpoint"]["step"]
    assert 0 < step < 2400
    assert call("stop", name, code=0).stderr == f"{name} has already ended: stopped\n"
    resumed = call("resume", name, code=0)
    assert resumed.stdout.splitlines()[0] == f"resumed from step {step}"
    assert f"attempt 2 started, from the checkpoint of step {step}" in resumed.stderr


def test_ctrl_c_detaches(slow_project: Path) -> None:
    client = subprocess.Popen(
        [PROGRAM, "launch", "experiment.yaml", "tasks.train.nodes=2", "params.steps=2400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert client.stdout is not None
    first = client.stdout.readline()
    assert first.startswith(("train.0 | step   20", "train.1 | step   20"))
    os.killpg(client.pid, signal.SIGINT)
    _, said = client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 130
    name = next(line.split()[0] for line in said.splitlines() if "  plan " in line)
    assert said.splitlines()[-3:] == [
        f"detached: {name} continues",
        f"  windlass logs {name} --follow",
        f"  windlass stop {name}",
    ]
    wait_for(lambda: "step   40" in call("logs", name).stdout)
    call("stop", name, "--now", code=0)


def test_json_alone_on_standard_output(project: Path) -> None:
    done = call("launch", "--json", "--", "echo", "to the log", code=0)
    content = json.loads(done.stdout)
    assert (content["schema"], content["state"], content["is_new"]) == ("windlass.launch/1", "succeeded", True)
    assert "to the log" in done.stderr


def test_a_dirty_tree_is_refused_and_named(project: Path) -> None:
    (project / "train.py").write_text("print('edited')\n")
    refused = call("launch", "experiment.yaml", code=8)
    assert "train.py" in refused.stderr
    assert "--snapshot" in refused.stderr
    assert call("launch", "experiment.yaml", "--snapshot", code=0).stdout == "edited\n"


def test_plan_render_is_what_a_launch_submits(project: Path, home: Path) -> None:
    rendered = json.loads(call("plan", "experiment.yaml", "--render", code=0).stdout)["jobs"][0]["files"]["job.json"]
    name = call("launch", "experiment.yaml", "params.steps=200", "-d", code=0).stdout.strip()
    submitted = json.loads((home / "runs" / name / "jobs" / "train-1" / "job.json").read_text())
    call("stop", name, "--now", code=0)
    assert rendered.keys() == submitted.keys()
    rendered, submitted = rendered | rendered.pop("command"), submitted | submitted.pop("command")
    place, made_up = f"{home}/runs/{name}", f"{home}/runs/hello-xxxxxxxx"
    differing = {
        key for key in rendered if json.dumps(rendered[key]).replace(made_up, place) != json.dumps(submitted[key])
    }
    assert differing <= {"run", "token", "env", "path", "python_path"}


def test_gc_leaves_a_run_in_motion_alone(slow_project: Path, home: Path) -> None:
    name = call("launch", "experiment.yaml", "params.steps=2400", "-d", code=0).stdout.strip()
    swept = json.loads(call("gc", "--runs", "--environments", "--older-than", "0s", "--yes", "--json", code=0).stdout)
    assert swept["removed"] == []
    call("stop", name, "--wait", "300s", code=0)
    wait_for(lambda: json.loads(call("gc", "--runs", "--older-than", "0s", "--yes", "--json").stdout)["removed"])
    assert not (home / "runs" / name).exists()
    assert call("show", name).returncode == 4


def test_ten_lines_of_python(project: Path) -> None:
    program = """
import windlass
experiment = windlass.Experiment(name="hello", run=["python", "train.py", "--steps", "20"])
assert len(experiment.plan().plan_hash) == 64
run = windlass.launch(experiment)
for line in run.logs(follow=True):
    print(line.task, line.rank, line.text)
print(run.state, sorted(path.name for path in run.outputs["main"].glob("*.json")), len(run.metrics("loss")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("main 0 step   20")
    assert "model.json" in lines[-1]
    assert lines[-1].startswith("succeeded")
