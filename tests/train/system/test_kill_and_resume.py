"""What kills, signals and restarts leave behind: the bits of a run that nothing happened to."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.train.phases import run_phase
from tests.train.tiny_recipe import RowLog, rows_by_step, tensors_of, tiny_recipe
from windlass.config.encode import to_data
from windlass.testing import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.world import World
from windlass.train.resolve import RECORD_SCHEMA

pytestmark = pytest.mark.system

STEPS = 30
ROOT = Path(__file__).parents[3]


class KillSoon(TrainerCallback):
    """Kills its own process within milliseconds of a step, whatever it is doing then."""

    def __init__(self, step: int, delay_s: float) -> None:
        self.step, self.delay_s = step, delay_s

    def on_step_start(self, batch: Any) -> None:
        if self.trainer.step == self.step:
            threading.Thread(target=self.kill).start()

    def kill(self) -> None:
        time.sleep(self.delay_s)
        os.kill(os.getpid(), signal.SIGKILL)


def train_on(folder: Path, kill: tuple[int, float] | None, world: World) -> None:
    trainer = build_trainer(tiny_recipe(folder, steps=STEPS), world)
    trainer.add_callback("rows", RowLog(str(folder / "rows")))
    if kill is not None:
        trainer.add_callback("kill", KillSoon(trainer.step + kill[0], kill[1]))
    trainer.fit()


def train_with_kills(world: World, parent: Path, seed: int) -> list[int]:
    """A straight run, then one that is killed again and again; returns the newest step after each kill."""
    assert run_phase(world, parent / "unused", 1, partial(train_on, parent / "straight", None)) == 0
    generator = random.Random(seed)
    survived, step = [], 0
    while step < STEPS - 8:
        kill = (step + generator.randint(3, 7), generator.random() * 0.03)
        code = run_phase(world, parent / "unused", 1, partial(train_on, parent / "killed", kill))
        assert code == -signal.SIGKILL
        step = max((int(path.name[5:]) for path in (parent / "killed/checkpoints").glob("step-*")), default=0)
        survived.append(step)
    assert run_phase(world, parent / "unused", 1, partial(train_on, parent / "killed", None)) == 0
    return survived


@pytest.mark.parametrize("seed", [1])
def test_kills_at_random_moments_change_no_bit(tmp_path: Path, seed: int) -> None:
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    [survived] = run_distributed_test(train_with_kills, num_processes=1, args=(tmp_path, seed))
    assert len(survived) >= 3
    assert survived[-1] > survived[0]
    assert rows_by_step(tmp_path / "killed/rows") == rows_by_step(tmp_path / "straight/rows")
    last = f"checkpoints/step-{STEPS}"
    assert tensors_of(tmp_path / "killed" / last) == tensors_of(tmp_path / "straight" / last)


def straight_fsdp(world: World, folder: Path) -> None:
    trainer = build_trainer(tiny_recipe(folder, steps=STEPS, parallel=ParallelConfig(data="fsdp")), world)
    trainer.add_callback("rows", RowLog(str(folder / "rows")))
    trainer.fit()
    assert dist.is_initialized()


def torchrun(folder: Path, harm: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    argv += [sys.executable, "-m", "tests.train.system.worker", str(folder), str(STEPS), harm]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_torchrun_with_fsdp_is_stopped_and_killed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight, harmed = tmp_path / "straight", tmp_path / "harmed"
    straight.mkdir()
    harmed.mkdir()
    run_distributed_test(straight_fsdp, num_processes=2, args=(straight,))

    told = torchrun(harmed, "term-5")
    assert told.returncode != 0
    steps = sorted(int(path.name[5:]) for path in (harmed / "checkpoints").glob("step-*"))
    heard = [int(path.read_text()) for path in harmed.glob("heard-*")]  # one may be told before its own signal comes
    assert [(harmed / f"code-{rank}").read_text() for rank in range(2)] == ["75", "75"], told.stderr
    assert min(heard) <= steps[-1] <= min(heard) + 1
    assert told.stderr.count("stopped after step") == 1

    killed = torchrun(harmed, f"kill-{steps[-1] + 5}")
    assert killed.returncode != 0
    done = torchrun(harmed, "none")
    assert done.returncode == 0, done.stderr
    assert rows_by_step(harmed / "rows") == rows_by_step(straight / "rows")
    last = f"checkpoints/step-{STEPS}"
    assert tensors_of(harmed / last) == tensors_of(straight / last)


def test_the_command_stops_with_75_goes_on_and_tells_errors_without_a_traceback(tmp_path: Path) -> None:
    recipe = to_data(tiny_recipe(tmp_path, steps=400), keep_defaults=True)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"schema": RECORD_SCHEMA, "recipe": recipe}))
    argv = [sys.executable, "-m", "windlass", "train", str(path), "callbacks.console.enabled=true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*argv, "callbacks.console.every=1", "collect_every=1"], env=environment, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGTERM)
                break
        lines += process.stderr.readlines()
        assert process.wait(300) == 75, "".join(lines)
    assert lines[-1].startswith("stopped after step "), lines
    assert "run the same command to resume" in lines[-1]

    bad = subprocess.run([*argv, "data.allow_changes=false", "model.vocab_size=100"], env=environment, capture_output=True, text=True, check=False)  # fmt: skip
    assert bad.returncode != 0
    assert "Traceback" not in bad.stderr
    assert bad.stderr.startswith("error: "), bad.stderr
