"""The torch-ddp example: a rank that is killed midway changes nothing in the result."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.example_copy import copy_example
from windlass import Run, launch, load
from windlass.core.process import ProcessId, descendants
from windlass.record.state import State

pytestmark = pytest.mark.system

WAIT_S = 400.0
OVERRIDES = [f"env.python={sys.executable}", "params.steps=12", "params.save_every=2"]


@pytest.fixture
def start(need: Callable[[str], None], home: Path, tmp_path: Path) -> Iterator[Callable[[], Run]]:
    need("torch")
    project = copy_example("torch-ddp", tmp_path / "project")
    started: list[Run] = []

    def start_one() -> Run:
        started.append(launch(load(project / "experiment.yaml", OVERRIDES)))
        return started[-1]

    yield start_one
    for run in started:
        if not run.state.is_terminal:
            run.stop(now=True)


def test_a_killed_rank_changes_nothing_in_the_result(start: Callable[[], Run]) -> None:
    undisturbed = start()
    assert undisturbed.wait(WAIT_S) is State.SUCCEEDED
    killed = start()
    victim = worker_of(killed, 1, after_checkpoints=2)
    os.kill(victim, signal.SIGKILL)
    assert killed.wait(WAIT_S) is State.SUCCEEDED

    attempts = killed.facts.tasks["train"].attempts
    assert len(attempts) == 2
    assert attempts[1].checkpoint_step >= 4
    end = attempts[1].end
    assert end is not None
    assert end.rank == 1
    assert "starts at step 0" not in (killed.folder.logs / "2" / "train" / "0.log").read_text()
    assert result_of(killed) == result_of(undisturbed)
    assert (killed.output("train") / "model.pt").read_bytes() == (undisturbed.output("train") / "model.pt").read_bytes()


def worker_of(run: Run, rank: int, *, after_checkpoints: int) -> int:
    """The process that trains (torchrun's child) of a replica, once the run has saved some checkpoints."""
    give_up_at = time.monotonic() + WAIT_S
    while len(list(run.folder.checkpoints("train").glob("step-*"))) < after_checkpoints:
        assert not run.state.is_terminal, run.facts.cause
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    replica = ProcessId.parse(run.facts.tasks["train"].attempts[1].replicas[rank].process)
    [worker] = [pid for pid in descendants(replica.pid) if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return worker


def result_of(run: Run) -> dict[str, object]:
    result = json.loads((run.output("train") / "result.json").read_text())
    assert isinstance(result, dict)
    assert set(result) == {"loss", "weights_sha256"}
    return result
