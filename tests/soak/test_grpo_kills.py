"""SIGKILL at random moments of `windlass train grpo` with worker processes: learners, workers, verifiers.

Each round starts or resumes the run and kills something in it. Whatever dies: no token older than the bound, each sample
learned once, no prompt skipped or planned twice, no finished sample generated again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.post.test_grpo import base, grpo, trainer_of
from tests.post.test_grpo_async import BOUND, check_samples, num_steps_stored

__all__ = ["base"]

pytestmark = pytest.mark.soak

NUM_KILLS = int(os.environ.get("WINDLASS_SOAK_KILLS", "100"))


def children(pid: int) -> list[int]:
    """Return all processes below one."""
    try:
        text = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    own = [int(word) for word in text.split()]
    return own + [each for child in own for each in children(child)]


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path, base: Path) -> None:
    chance, killed, num_steps = random.Random(15), Counter[str](), 3 * NUM_KILLS
    settings = (*BOUND, f"duration={num_steps}steps", "checkpoint.every=4steps", "collect_every=1", "async.workers=2")
    reward = "reward.verifiers=[{name: exact}, {name: format, weight: 0.0, settings: {regex: '[0-9]+'}}]"
    overrides = grpo(tmp_path, base, *settings, reward).overrides
    words = [sys.executable, "-m", "windlass", "train", "grpo", *overrides]
    output = tmp_path / "output.txt"
    process: subprocess.Popen[bytes] | None = None
    while sum(killed.values()) < NUM_KILLS:
        if process is None or process.poll() is not None:
            assert process is None or process.returncode in (-signal.SIGKILL, 0), output.read_text()[-3000:]
            if process is not None and process.returncode == 0:
                break
            before = num_steps_stored(tmp_path / "run")
            with output.open("wb") as file:
                process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=file, stderr=file)
            deadline = time.monotonic() + 120
            while num_steps_stored(tmp_path / "run") <= before and process.poll() is None:
                assert time.monotonic() < deadline, "no step in two minutes"
                time.sleep(0.05)
        time.sleep(chance.expovariate(1.0))
        below = children(process.pid)
        target = chance.choice([process.pid, *below, *below]) if below else process.pid
        killed["learner" if target == process.pid else "worker or verifier"] += 1
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue
        if target == process.pid:
            process.wait()
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    final = trainer_of(grpo(tmp_path, base, *settings, reward))
    assert final.fit().is_finished
    check_samples(tmp_path / "run", num_steps)
    assert len(killed) == 2, killed
