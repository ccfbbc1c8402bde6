"""The train-architecture example: a model in one file, planned, trained, resumed, and as a task of an experiment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.example_copy import copy_example

pytestmark = pytest.mark.system


def run(*argv: str, at: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *argv]
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def windlass(*words: str, at: Path) -> str:
    return run("-m", "windlass", *words, at=at)


def test_a_new_architecture_learns_goes_on_and_runs_as_a_task(tmp_path: Path, home: Path) -> None:
    folder = copy_example("train-architecture", tmp_path / "example")
    run("text.py", at=folder)
    assert re.search(r"kernel: 8 +# default", windlass("train", "recipe.yaml", "--dry-run", at=folder))
    assert "parameters    135k" in windlass("train", "recipe.yaml", "--plan", "world=2", at=folder)

    said = windlass("train", "recipe.yaml", "stop=20steps", at=folder)
    first, last = (float(loss) for loss in (re.findall(r"loss (\S+)", said)[0], re.findall(r"loss (\S+)", said)[-1]))
    assert last < first - 1.0
    assert "step 20/30" in windlass("train", "recipe.yaml", "stop=30steps", at=folder)

    words = [
        sys.executable,
        "-m",
        "windlass",
        "train",
        "recipe.yaml",
        "stop=2steps",
        "name=task",
        "no_checkpoints=true",
    ]
    launched = windlass("launch", "--name", "task", "--allow-dirty", "--", *words, at=folder)
    assert "finished after step 2" in launched
