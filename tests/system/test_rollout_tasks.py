"""A task that learns beside tasks that generate for it: either may die, and the other goes on."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass.core.errors import NotFoundError
from windlass.core.process import send_signal
from windlass.post import read_samples
from windlass.record.state import State

pytestmark = pytest.mark.system

WINDLASS = [PYTHON, "-m", "windlass", "train"]
LEARNER = [
    *WINDLASS,
    "grpo",
    "model=llama-1m",
    "data.tokenizer.path=bytes",
    "data.template=plain",
    "data.mix.0.source=sums.jsonl",
    "data.batch_rows=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=4",
    "rollout.drop_constant_groups=false",
    "reward.verifiers=[exact, 'paced:length']",
    "duration=30steps",
    "checkpoint.every=4steps",
    "async.place=join",
    "async.bound=2",
    "objective.correction={clamp_max: 2}",
]
WORKER = [*WINDLASS, "worker", "--task", "train"]
PACED = """
import os, time

def length(answer, ground_truth):
    if not os.path.exists({fast!r}):  # made once everything has been broken
        time.sleep(0.1)
    return len(answer.text) % 3 / 2
"""


def steps_of(folder: Path) -> Counter[int | None]:
    """Return how many stored answers each step learned from."""
    try:
        return Counter(each.step for each in read_samples(folder))
    except NotFoundError:
        return Counter()


def test_a_learner_and_a_worker_that_are_killed_come_back(stage: Stage) -> None:
    rows = [
        {"prompt": f"{first}+{second}=", "answer": str(first + second)} for first in range(10) for second in range(10)
    ]
    stage.write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    tasks = {
        "train": {"run": LEARNER, "grace": "1s"},
        "rollout-1": {"run": WORKER, "grace": "1s"},
        "rollout-2": {"run": WORKER, "grace": "1s"},
    }
    stage.write("paced.py", PACED.format(fast=str(stage.code / "fast")))
    env = {"vars": {"OMP_NUM_THREADS": "1"}}
    run = stage.launch({"env": env, "tasks": tasks, "retry": {"failed": 2, "interrupted": 2}})
    folder = run.folder.checkpoints("train")
    stage.wait_for_user(run, task="rollout-2")
    until(lambda: len(steps_of(folder)) >= 6, "six steps", story=lambda: stage.story(run))
    for task in ("rollout-2", "train"):
        send_signal(stage.wait_for_user(run, task=task), signal.SIGKILL)
    (stage.code / "fast").touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    numbers = [len(stage.attempts(run, task)) for task in ("train", "rollout-1", "rollout-2")]
    assert numbers == [2, 1, 2], stage.story(run)
    samples = [each for each in read_samples(folder) if each.step is not None]
    assert Counter(each.step for each in samples) == dict.fromkeys(range(30), 16)
    used = Counter((each.scored.sample.id.group, each.scored.sample.id.member) for each in samples)
    assert set(used.values()) == {1}
