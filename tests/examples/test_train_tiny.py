"""The train-tiny example learns real text: alone, sharded over two processes, and as an experiment that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.example_copy import commit_all, copy_example
from windlass import Run, launch, load
from windlass.core.process import ProcessId, descendants
from windlass.record.state import State

pytestmark = pytest.mark.system

WAIT_S = 600.0
STEPS = 120
# Natural logarithm for each byte. Knowing how often each byte comes gives 3.3 on either text, and no more.
REACHED = {"shakespeare": 2.65, "library": 2.75}
SMALL = (
    "model.num_layers=2",
    "data.batch_tokens=1024",
    "data.sequence_length=64",
    "optim.lr=8e-3",
    "checkpoint.every=10steps",
    "callbacks.held-out.every=60steps",
    "callbacks.held-out.max_tokens=8192",
    "parallel.strict.shards=2",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its text."""
    folder = copy_example("train-tiny", tmp_path_factory.mktemp("learning") / "project")
    text = real_text()
    settings = [*SMALL, f"data.sources.0.path={folder}/text/train.txt"]
    settings += [f"callbacks.held-out.sources.held.path={folder}/text/held.txt"]
    experiment = (folder / "experiment.yaml").read_text()
    end = "held.path=${data.text}/held.txt\n"
    assert experiment.count(end) == 1
    (folder / "experiment.yaml").write_text(experiment.replace(end, f"{end}      {' '.join(settings)}\n"))
    commit_all(folder)
    subprocess.run([sys.executable, "text.py", "text", *map(str, text)], cwd=folder, check=True)
    return folder


def real_text() -> list[Path]:
    """Shakespeare, where it is; else nothing, which means the standard library's source."""
    folder = os.environ.get("WINDLASS_TEST_DATA", "")
    return sorted(Path(folder).glob("tinyshakespeare*.txt"))[:1] if folder else []


@pytest.fixture(scope="module")
def alone(project: Path) -> dict[int, dict[str, float]]:
    """The curve of one process."""
    folder = project / "checkpoints/alone"
    words = [sys.executable, "-m", "windlass", "train", "train.py", f"duration={STEPS}steps", *SMALL]
    run_in(project, [*words, f"checkpoint.folder={folder}"])
    return curve_of(folder / "metrics.jsonl")


def run_in(folder: Path, words: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr


def curve_of(path: Path) -> dict[int, dict[str, float]]:
    """What is no speed, by step, to twelve digits; every step stands there once."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return {
        line["step"]: {
            name: round(value, 12) for name, value in line.items() if name.startswith(("train/", "eval/", "optim/"))
        }
        for line in lines
    }


def test_one_process_learns(alone: dict[int, dict[str, float]]) -> None:
    text = "shakespeare" if real_text() else "library"
    losses = [alone[step]["eval/held/loss"] for step in (60, 120)]
    assert losses[1] < losses[0] < 4.0
    assert losses[1] < REACHED[text], losses
    assert alone[1]["train/loss"] > 5.0


def test_two_processes_that_share_the_weights_learn_the_same(alone: dict[int, dict[str, float]], project: Path) -> None:
    folder = project / "checkpoints/two"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "windlass", "train", "train.py", f"duration={STEPS}steps", *SMALL, "parallel.data=fsdp"]
    run_in(project, [*words, f"checkpoint.folder={folder}"])
    assert curve_of(folder / "metrics.jsonl") == alone


@pytest.fixture
def start(need: Callable[[str], None], home: Path, project: Path) -> Iterator[Callable[[], Run]]:
    need("torch")
    started: list[Run] = []

    def start_one() -> Run:
        overrides = [f"env.python={sys.executable}", f"params.steps={STEPS}"]
        started.append(launch(load(project / "experiment.yaml", overrides)))
        return started[-1]

    yield start_one
    for run in started:
        if not run.state.is_terminal:
            run.stop(now=True)


def test_an_experiment_of_two_nodes_that_is_killed_learns_the_same(
    alone: dict[int, dict[str, float]], start: Callable[[], Run]
) -> None:
    run = start()
    os.kill(worker_of(run, 1, after_checkpoints=2), signal.SIGKILL)
    assert run.wait(WAIT_S) is State.SUCCEEDED
    attempts = run.facts.tasks["train"].attempts
    assert len(attempts) == 2
    assert attempts[1].checkpoint_step >= 20
    assert curve_of(run.output("train") / "metrics.jsonl") == alone


def worker_of(run: Run, rank: int, *, after_checkpoints: int) -> int:
    """The process that trains (torchrun's child) of a replica, once the run has saved some checkpoints."""
    give_up_at = time.monotonic() + WAIT_S
    while len(list(run.folder.checkpoints("train").glob("step-*/manifest.json"))) < after_checkpoints:
        assert not run.state.is_terminal, run.facts.cause
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    replica = ProcessId.parse(run.facts.tasks["train"].attempts[1].replicas[rank].process)
    workers = [pid for pid in descendants(replica.pid) if is_worker(pid)]
    assert len(workers) == 1, workers
    return workers[0]


def is_worker(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"windlass" in words and b"torch.distributed.run" not in words
