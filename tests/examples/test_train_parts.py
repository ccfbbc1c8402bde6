"""The train-parts example: a trainer put together by hand, and one that knows no language."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.example_copy import EXAMPLES

pytestmark = pytest.mark.system


def run(script: str, *words: str, at: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(EXAMPLES / "train-parts" / script), *words]
    done = subprocess.run(argv, cwd=at, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_parts_train_sample_and_go_on(tmp_path: Path) -> None:
    said = run("train.py", "8", at=tmp_path)
    assert said.count("b'def ") == 4
    assert "finished after 8 steps" in said
    assert (tmp_path / "checkpoints/step-8/manifest.json").exists()


def test_digits_are_read(tmp_path: Path) -> None:
    said = run("images.py", "200", at=tmp_path)
    [accuracy] = re.findall(r"step 200/200 .*accuracy (\S+)", said)
    assert float(accuracy) > 0.5  # a guess is right one time in ten
