from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.pin.projects import lock, make_project
from tests.system.stage import Stage
from windlass import Options, Run, launch
from windlass.launcher.prepare import prepare_file
from windlass.record.state import State

pytestmark = pytest.mark.system


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(stage: Stage) -> Path:
    """A locked project whose package prints a value, in a repository."""
    folder = stage.code / "project"
    make_project(folder)
    lock(folder)
    (folder / "experiment.yaml").write_text(
        "name: commit\nenv: {uv: .}\n"
        "run: [python, -c, 'import demo, tiny, time; time.sleep(0.3); from demo import late; print(demo.VALUE, late.VALUE, tiny.VERSION)']\n"
    )
    (folder / "src/demo/late.py").write_text("VALUE = 1\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def start(stage: Stage, folder: Path, log: list[str], *overrides: str) -> Run:
    prepared = prepare_file(folder / "experiment.yaml", overrides, Options(), home=stage.home)
    return launch(prepared, log=log.append)


def test_two_commits_with_one_lock_at_once(stage: Stage, project: Path) -> None:
    other = stage.code / "other"
    git(project, "clone", "-q", str(project), str(other))
    for name in ("__init__", "late"):
        (other / f"src/demo/{name}.py").write_text("VALUE = 2\n")
    git(other, "commit", "-qam", "two")
    log: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda folder: start(stage, folder, log), (project, other))
    for name in ("__init__", "late"):  # an edit after the launch reaches nothing
        (project / f"src/demo/{name}.py").write_text("VALUE = 3\n")
    assert [stage.end(first), stage.end(second)] == [State.SUCCEEDED, State.SUCCEEDED], stage.story(first)
    assert [stage.log(first), stage.log(second)] == ["1 1 2.0\n", "2 2 2.0\n"]
    assert len(environments(stage)) == 1


def test_twenty_launches_at_once_build_one_environment(stage: Stage, project: Path) -> None:
    log: list[str] = []
    with ThreadPoolExecutor(20) as pool:
        runs = list(
            pool.map(
                lambda _: start(stage, project, log, "run=[python, -c, 'import tiny; print(tiny.VERSION)']"), range(20)
            )
        )
    assert [stage.end(run) for run in runs] == [State.SUCCEEDED] * 20, stage.story(runs[0])
    assert {stage.log(run) for run in runs} == {"2.0\n"}
    assert len({run.id for run in runs}) == 20
    assert len(environments(stage)) == 1
    assert sum(line.startswith("building the environment") for line in log) == 1, log


def environments(stage: Stage) -> list[Any]:
    return [path for path in (stage.home.cache / "envs").iterdir() if path.is_dir() and not path.name.startswith(".")]
