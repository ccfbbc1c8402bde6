"""Learners on two nodes of a real Slurm and rollouts on two others; nodes lose power, and no sample is lost or doubled."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.slurm import SlurmLab
from tests.lab.slurm_conf import Options
from tests.post.addition import TINY_MODEL
from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from tests.system.test_rollout_tasks import PACED, steps_of
from windlass import Run
from windlass.post import read_samples
from windlass.post.samples.frames import read_headers
from windlass.post.samples.reader import SampleFolder
from windlass.record.state import State
from windlass.runs.home import Home

pytestmark = pytest.mark.system

NUM_STEPS, ANSWERS = 80, 16
LEARNER = [
    *(PYTHON, "-m", "windlass", "train", "grpo", "--ray-learners", "2"),
    TINY_MODEL,
    "data.tokenizer.path=bytes",
    "data.template=plain",
    "data.mix.0.source=sums.jsonl",
    "data.cache=cache",
    "data.max_length=16",
    "data.microbatch_tokens=1024",
    "data.batch_rows=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=4",
    "rollout.num_slots=16",
    "rollout.drop_constant_groups=false",
    "reward.verifiers=[exact, 'paced:length']",
    f"duration={NUM_STEPS}steps",
    "checkpoint.every=4steps",
    "collect_every=1",
    "async.place=join",
    "async.bound=2",
    "objective.correction={clamp_max: 2}",
]
WORKER = [PYTHON, "-m", "windlass", "train", "worker", "--task", "train"]


@pytest.fixture
def stage(
    tmp_path: Path, home: Path, need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmStage]:
    """Four nodes for the run, and a spare one for each that will be lost: a retry avoids the node that was lost."""
    for name in ("slurm", "ray", "torch"):
        need(name)
    lab = SlurmLab(Options(num_nodes=6), name=f"rollouts-of-{os.getpid()}")
    try:
        lab.up()
        monkeypatch.setenv("SLURM_CONF", lab.env["SLURM_CONF"])
        stage = SlurmStage(tmp_path, Home(home), lab)
        stage.write_site(**{"num_nodes: 4": "num_nodes: 6"})
        yield stage
        stage.close()
    finally:
        lab.down()


def host_of(run: Run, task: str, rank: int = 0) -> str:
    newest = run.facts.task(task).newest_attempt
    assert newest is not None
    return newest.replicas[rank].host


def is_learner(stage: SlurmStage, node: str, rank: int) -> bool:
    """Return whether a node runs the process of this rank."""
    for pid in stage.lab.hosts.processes(node):
        try:
            words, environ = (Path(f"/proc/{pid}/{part}").read_bytes().split(b"\0") for part in ("cmdline", "environ"))
        except OSError:  # it has ended
            continue
        if b"grpo" in words and (f"RANK={rank}".encode() in environ or rank == 0):
            return True
    return False


def test_power_cuts_of_nodes_with_an_engine_and_a_learner(stage: SlurmStage) -> None:
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
    stage.write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    stage.write("paced.py", PACED.format(fast=str(stage.code / "fast")))
    path = f"{os.path.dirname(PYTHON)}:/usr/bin:/bin"
    each = {"cpus": 8, "grace": "1s"}  # a whole node
    tasks = {
        "train": {"run": LEARNER, "nodes": 2, "cluster": "ray", **each},
        "rollout-1": {"run": WORKER, **each},
        "rollout-2": {"run": WORKER, **each},
    }
    env = {"vars": {"OMP_NUM_THREADS": "1", "PATH": path}}
    run = stage.start({"env": env, "tasks": tasks, "retry": {"failed": 0, "interrupted": 4}})
    folder = run.folder.checkpoints("train")

    def reach(step: int) -> None:
        def is_there() -> bool:
            assert stage.causes(run, "train") == [], stage.story(run)
            return len(steps_of(folder)) >= step

        until(is_there, f"{step} steps", story=lambda: stage.story(run), timeout_s=600, poll_s=0.2)

    def saved() -> int:
        return run.facts.task("train").last_checkpoint.step

    reach(4)
    learners = [host_of(run, "train", rank) for rank in range(2)]
    assert [is_learner(stage, node, rank) for rank, node in enumerate(learners)] == [True, True]
    lost = host_of(run, "rollout-1")
    assert len({*learners, lost, host_of(run, "rollout-2")}) == 4

    stage.lab.kill(lost)
    until(
        lambda: stage.causes(run, "rollout-1") == ["node-lost"],
        "the engine's node is lost",
        story=lambda: stage.story(run),
    )
    reach(len(steps_of(folder)) + 2)
    assert stage.causes(run, "train") == [], "the learners were not disturbed"
    until(lambda: saved() > 0, "a checkpoint", story=lambda: stage.story(run))
    before = saved()
    stage.lab.kill(learners[1])
    until(lambda: len(stage.attempts(run, "train")) >= 2, "the learners start again", story=lambda: stage.story(run))
    (stage.code / "fast").touch()
    assert stage.end(run, timeout_s=600) is State.SUCCEEDED, stage.story(run)

    *lost_causes, last = stage.causes(run, "train")
    assert last == "ok", stage.story(run)
    # The first may see the lost connection before Slurm sees the lost node.
    assert "node-lost" in lost_causes, stage.story(run)
    assert set(lost_causes) <= {"network", "node-lost"}, stage.story(run)
    assert stage.causes(run, "rollout-1") == ["node-lost", "ok"], stage.story(run)
    assert stage.causes(run, "rollout-2") == ["ok"], stage.story(run)
    first, resumed = (stage.log(run, attempt, task="train") for attempt in (1, len(lost_causes) + 1))
    begun = rf"step (\d+)/{NUM_STEPS} +training on 2 processes"
    assert re.findall(begun, first) == ["0"]
    [step] = re.findall(begun, resumed)
    assert int(step) >= before, "it began again at the last checkpoint"
    check(folder)
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def check(folder: Path) -> None:
    """Check that each step has its answers, and that none was planned, generated or learned twice."""
    samples = [each for each in read_samples(folder) if each.step is not None]
    assert Counter(each.step for each in samples) == dict.fromkeys(range(NUM_STEPS), ANSWERS)
    used = Counter((each.scored.sample.id.group, each.scored.sample.id.member) for each in samples)
    assert set(used.values()) == {1}
    log = SampleFolder(folder / "samples")
    headers = [header for number in log.numbers() for _, header in read_headers(log.file(number).read_bytes())[0]]
    rows = [row for header in headers for row in header["rows"]]
    for kind, end in (("sample", 3), ("plan", 2)):
        assert set(Counter(tuple(row[1:end]) for row in rows if row[0] == kind).values()) == {1}
