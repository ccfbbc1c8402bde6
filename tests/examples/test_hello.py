"""The hello example: its tour proves what it says, and a stopped run goes on to the same weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.example_copy import EXAMPLES, commit_all
from windlass import Run, launch, load
from windlass.record.state import State
from windlass.runs.home import Home

pytestmark = pytest.mark.system

WAIT_S = 300.0


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples inside another git repository, with a change nobody committed; the tour has been through it."""
    root = tmp_path_factory.mktemp("a clone")
    shutil.copytree(EXAMPLES / "hello", root / "examples" / "hello", ignore=shutil.ignore_patterns("__pycache__"))
    commit_all(root)
    (root / "examples" / "dirty").write_text("not committed\n")
    return root


@pytest.fixture(scope="module")
def tour(clone: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "WINDLASS_HOME": "/nowhere"}
    script = clone / "examples" / "hello" / "demo.sh"
    return subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)


def facts_of(clone: Path, name: str) -> dict[str, object]:
    found = json.loads((clone / "build" / "demo" / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def test_the_tour_kills_a_replica_and_proves_that_nothing_changed(
    clone: Path, tour: subprocess.CompletedProcess[str]
) -> None:
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert "killed with SIGKILL" in tour.stdout
    assert "yes  the weights are equal, bit for bit" in tour.stdout
    assert "NO " not in tour.stdout
    first, second = facts_of(clone, "first"), facts_of(clone, "second")
    assert first["run"] != second["run"]
    assert first["plan_hash"] == second["plan_hash"]
    assert [facts["state"] for facts in (first, second)] == ["succeeded", "succeeded"]


def test_a_difference_fails_the_tour(clone: Path, tour: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert tour.returncode == 0, tour.stdout + tour.stderr
    other = facts_of(clone, "second")
    other["outputs"]["train"]["digest"] = "0" * 64  # type: ignore[index]
    (tmp_path / "other.json").write_text(json.dumps(other))
    compare = clone / "examples" / "hello" / "demo" / "compare.py"
    words = [sys.executable, str(compare), str(clone / "build" / "demo" / "first.json"), str(tmp_path / "other.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NO   so are all outputs" in done.stdout


@pytest.fixture
def stoppable(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run of the tour's project, under the tour's home, whose environment is built."""
    monkeypatch.setenv("WINDLASS_HOME", str(clone / "build" / "demo" / "home"))
    run = launch(load(clone / "build" / "demo" / "hello" / "experiment.yaml"))
    yield run
    if not run.state.is_terminal:
        run.stop(now=True)


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_outputs(
    clone: Path, tour: subprocess.CompletedProcess[str], stoppable: Run
) -> None:
    assert tour.returncode == 0, tour.stdout + tour.stderr
    wait_for_a_checkpoint(stoppable)
    stoppable.stop(checkpoint=True)
    assert stoppable.wait(WAIT_S) is State.STOPPED
    stopped_at = stoppable.facts.tasks["train"].last_checkpoint.step
    assert 0 < stopped_at < 3000

    assert stoppable.resume() == ["train"]
    assert stoppable.wait(WAIT_S) is State.SUCCEEDED
    attempts = stoppable.facts.tasks["train"].attempts
    assert len(attempts) == 2
    undisturbed = Run.find(str(facts_of(clone, "first")["run"]), Home.default())
    for name in ("weights.npy", "result.json"):
        assert (stoppable.output("train") / name).read_bytes() == (undisturbed.output("train") / name).read_bytes()


def wait_for_a_checkpoint(run: Run) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not run.facts.tasks["train"].last_checkpoint.path:
        assert not run.state.is_terminal
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
