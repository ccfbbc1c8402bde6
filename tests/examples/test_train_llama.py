"""The train-llama example: its recipes resolve without torch, and the small one trains by the launch script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.example_copy import EXAMPLES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "train-llama", tmp_path / "project")
    corpus = tmp_path / "project" / "corpus"
    corpus.mkdir()
    shutil.copy(os.__file__, corpus / "os.txt")
    return tmp_path / "project"


def run(project: Path, *words: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(project / "cache")}
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("recipe", ["train.py", "train.py:small"])
def test_a_recipe_resolves(project: Path, recipe: str) -> None:
    shown = run(project, sys.executable, "-m", "windlass", "train", recipe, "--dry-run", "optim.lr=3e-4")
    assert "no_checkpoints: true" in shown
    assert any(line.split() == ["lr:", "0.0003", "#", "command", "line"] for line in shown.splitlines()), shown


@pytest.mark.system
def test_the_script_trains(project: Path, need: Callable[[str], None]) -> None:
    need("torch")
    shown = run(project, "env", "NUM_GPUS=2", "./launch.sh", "train.py:small", "parallel.data=fsdp")
    assert "step 10/" in shown
    assert not (project / "checkpoints").exists()
