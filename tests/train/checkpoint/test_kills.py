"""A kill at any moment leaves a whole checkpoint, and leftovers that the next save of the same run removes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def kill(folder: Path, *, num_processes: int, num_kills: int, seed: int) -> None:
    argv = [sys.executable, "-m", "tests.train.checkpoint.killing", folder, num_processes, num_kills, seed]
    done = subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300 + 10 * num_kills,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.system
@pytest.mark.parametrize(("num_processes", "num_kills"), [(1, 16), (2, 8)])
def test_killed_at_any_moment(tmp_path: Path, num_processes: int, num_kills: int) -> None:
    kill(tmp_path / "checkpoints", num_processes=num_processes, num_kills=num_kills, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_killed_hundreds_of_times(tmp_path: Path, num_processes: int) -> None:
    kill(tmp_path / "checkpoints", num_processes=num_processes, num_kills=300, seed=num_processes)
