"""Folders of weights: one a run, gone with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from windlass.post.weights.folder import WeightsFolder

OWNER = """
import sys
from pathlib import Path
from windlass.post.weights.folder import WeightsFolder
folder = WeightsFolder(1, Path(sys.argv[1]))
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_owner_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    words = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        first = WeightsFolder(1, tmp_path)
        assert left.is_dir(), "its owner lives"
        os.kill(owner.pid, signal.SIGKILL)
    second = WeightsFolder(1, tmp_path)
    assert not left.exists()
    assert first.path.is_dir()
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_large_version_is_not_put_into_memory() -> None:
    folder = WeightsFolder(1 << 60)
    assert not folder.path.is_relative_to("/dev/shm")
    folder.close()
