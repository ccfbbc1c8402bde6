"""A run that ended, one file of whose journal is then cut, emptied or removed: it stays ended, and nothing runs again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system


def windlass(*arguments: str) -> str:
    """What a command printed on standard output."""
    argv = [sys.executable, "-m", "windlass", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def damages(path: Path) -> dict[str, Callable[[], object]]:
    """The file without its last records, without half of one, empty, and gone; each from what the one before left."""
    whole = path.read_bytes()
    lines = lines_of(path)
    found: dict[str, Callable[[], object]] = {}
    for num_left in range(len(lines) - 1, -1, -1):
        found[f"{num_left} records"] = lambda n=num_left: path.write_bytes(b"".join(lines[:n]))  # type: ignore[misc]
        found[f"{num_left} records and a half"] = (
            lambda n=num_left: path.write_bytes(  # type: ignore[misc]
                b"".join(lines[:n]) + lines[n][: len(lines[n]) // 2]
            )
        )
    found["no file"] = path.unlink
    found["zeros"] = lambda: path.write_bytes(b"\0" * len(whole))
    return found


def ended(stage: Stage, command: str) -> Run:
    run = stage.launch(stage.task(command))
    assert run.wait(300).is_terminal
    assert stage.survivors(run) == {}
    return run


@pytest.mark.parametrize(("command", "state"), [("echo x; true", "succeeded"), ("echo x; exit 5", "failed")])
def test_a_damaged_file_never_runs_a_task_again(
    stage: Stage, command: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_HOME", str(stage.home.path))
    run = ended(stage, command)
    assert str(run.state) == state
    path = run.folder.journal / "main.0.wj"
    for name, damage in damages(path).items():
        damage()
        said = json.loads(windlass("show", run.id, "--json"))
        assert said["state"] == state, name
        assert [job["number"] for job in said["tasks"]["main"]["jobs"]] == [1], name
        if name != "zeros" and "main.0.wj" not in str(said["damage"]):
            assert "half" in name, name  # a torn tail is what a crash leaves, and says nothing by itself
        run.reconcile()
        assert str(run.state) == state, name
    windlass("ps", "--reconcile")
    assert sorted(path.name for path in run.folder.jobs.iterdir()) == ["main-1"]
    assert sorted(path.name for path in run.folder.logs.iterdir()) == ["1"]


def test_a_lost_client_file_never_runs_a_task_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_HOME", str(stage.home.path))
    run = ended(stage, "true")
    for path in run.folder.journal.glob("client-*"):
        path.unlink()
    assert json.loads(windlass("show", run.id, "--json"))["state"] == "succeeded"
    run.reconcile()
    for path in run.folder.journal.iterdir():
        path.unlink()
    assert json.loads(windlass("show", run.id, "--json"))["state"] == "succeeded"
    run.reconcile()
    assert run.state is State.SUCCEEDED
    assert sorted(path.name for path in run.folder.jobs.iterdir()) == ["main-1"]
