"""Workers that outlive their learner: they keep what they hold, join the next one, and end with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.post.test_grpo import base, grpo, rollouts_of, trainer_of
from tests.post.test_grpo_async import BOUND, check_samples, num_steps_stored
from windlass.core.clock import FakeClock
from windlass.post.control.asynchronous import AsyncRollouts
from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.prompts import PromptPools
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.source import GroupPrompts
from windlass.post.control.workers import JoiningWorker
from windlass.post.rollout.fake import FakeEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling, TokenSpan
from windlass.post.samples.records import PlanGroup, Record, ReserveBatch
from windlass.post.weights.store import Probe, WeightRef
from windlass.post.workers.joining import ADDRESS_FILE, LearnerAddress
from windlass.post.workers.remote import RemoteEngine

__all__ = ["base"]

pytestmark = pytest.mark.system

JOIN = (*BOUND, "async.place=join")
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the run in a folder."""
    words = [sys.executable, "-m", "windlass", "train", "worker", str(folder / "run"), *options]
    with (folder / "worker.txt").open("ab") as file, subprocess.Popen(words, env=ENVIRON, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


def test_learners_that_are_killed_leave_workers_that_join_the_next_one(tmp_path: Path, base: Path) -> None:
    settings = (*JOIN, "duration=24steps", "checkpoint.every=3steps", "collect_every=1")
    words = [sys.executable, "-m", "windlass", "train", "grpo", *grpo(tmp_path, base, *settings).overrides]
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(tmp_path)) for _ in range(2)]
        for number in (1, 2, 3):
            want = num_steps_stored(tmp_path / "run") + number + 1  # of its own: it began again at a checkpoint
            process = subprocess.Popen(words, env=ENVIRON)
            deadline = time.monotonic() + 300
            while num_steps_stored(tmp_path / "run") < want:
                assert process.poll() is None, "it ended by itself"
                assert time.monotonic() < deadline, "no step in five minutes"
                time.sleep(0.005)
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert [each.poll() for each in workers] == [None, None], (tmp_path / "worker.txt").read_text()
        last = trainer_of(grpo(tmp_path, base, *settings))
        assert last.fit().is_finished
        assert "rollout/unproven" not in rollouts_of(last).metrics
        assert [each.wait(300) for each in workers] == [0, 0], (tmp_path / "worker.txt").read_text()
    check_samples(tmp_path / "run", 24)
    assert (tmp_path / "run" / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
    address = LearnerAddress.read(tmp_path / "run")
    assert address is not None
    assert (address.incarnation, address.is_finished) == (4, True)


class Survivor:
    """A worker's engine that holds samples of version 3, with weights of this digest."""

    is_ready, is_loading, pid = True, False, 1

    def __init__(self, digest: str) -> None:
        self.facts = FakeEngine(FakeClock(), num_slots=4, max_length=64).facts
        self.holds = tuple(SampleId(group=2, member=member) for member in range(2))
        self.loaded, self.done = {2: "d2", 3: digest}, [made(3, 0)]
        self.num_open = 0
        self.adopted, self.loads = list[SampleId](), list[int]()
        self.has_started_over = False

    def adopt(self, requests: Sequence[SampleRequest]) -> None:
        self.adopted = [each.id for each in requests]

    def start_over(self) -> None:
        self.has_started_over, self.holds, self.loaded = True, (), {}

    def begin_load(self, ref: WeightRef, *, open_work: str) -> None:
        self.loads.append(ref.version)

    def submit(self, works: Sequence[SampleRequest]) -> int:
        return len(works)

    def cancel(self, ids: Sequence[SampleId]) -> None:
        pass

    def open_work(self) -> list[SampleId]:
        return self.adopted[1:]

    def poll(self, timeout_s: float) -> list[Sample]:
        done, self.done = self.done, []
        return done

    def version(self) -> int:
        return self.loads[-1] if self.loads else 3

    def close(self) -> None:
        pass


def made(version: int, member: int) -> Sample:
    return Sample(
        id=SampleId(group=2, member=member),
        ids=(1,),
        logp=(0.0,),
        raw_logp=None,
        spans=(TokenSpan(start=0, stop=1, version=version),),
        finish="stop",
    )


class Prompts:
    position = 0

    def row(self, group: int) -> int:
        return group

    def visits(self, answers: object) -> list[object]:
        return []

    def request(self, sample: SampleId, oldest_version: int) -> SampleRequest:
        return SampleRequest(id=sample, prompt_ids=(1,), sampling=Sampling(max_new_tokens=1))

    def truth(self, group: int) -> object:
        return None


class Scorer:
    def __init__(self) -> None:
        self.scored: list[SampleId] = []

    def score(self, samples: Sequence[Sample], prompts: object, truths: object) -> list[ScoredSample]:
        self.scored += [each.id for each in samples]
        return [ScoredSample(sample=each, prompt_ids=(1,), text="", rewards={}, reward=0.0) for each in samples]

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("digest", ["d3", "other"])
def test_samples_of_versions_ahead_wait_until_the_learner_has_made_the_same_weights(digest: str) -> None:
    """The learner went back from step 3 to its checkpoint of step 2; its worker has generated with version 3."""
    config = ControllerConfig(groups_per_batch=1, group_size=2, bound=2, ahead=1)
    plans = [PlanGroup(group=group, row=group, oldest_version=version) for group, version in ((0, 1), (1, 2), (2, 3))]
    records: list[Record] = [*plans, ReserveBatch(step=2, groups=(0,)), ReserveBatch(step=3, groups=(1,))]
    controller = RolloutController.rebuilt(config, records, step=2)
    engine, scorer = Survivor(digest), Scorer()
    arrived = [JoiningWorker(name="one", engine=cast(RemoteEngine, engine), may_keep=True)]
    rollouts = AsyncRollouts(
        controller,
        cast(GroupPrompts, Prompts()),
        num_workers=1,
        publish=lambda weights, probe, version: WeightRef(version=version, digest=f"d{version}"),
        start=lambda number, ref: pytest.fail("nothing is started"),
        arrivals=lambda ref: [arrived.pop()] if arrived else [],
        close=lambda: None,
        scorer=cast(AnswerScorer, scorer),
        pools=PromptPools(None, None, num_rows=100),
    )
    try:
        assert rollouts.waits_for() == "workers; start some with `windlass train worker`"
        rollouts.advance({}, cast(Probe, None), 2)
        until(lambda: not engine.done, "it was polled")
        time.sleep(0.2)
        assert engine.adopted == [SampleId(group=2, member=member) for member in range(2)]
        assert (scorer.scored, engine.loads, engine.has_started_over) == ([], [], False)
        rollouts.advance({}, cast(Probe, None), 3)
        if digest == "d3":
            until(lambda: bool(scorer.scored), "the sample counts")
            assert (scorer.scored, engine.loads, engine.has_started_over) == ([SampleId(group=2, member=0)], [], False)
            assert rollouts.metrics()["rollout/adopted"] == 2
        else:
            until(lambda: bool(engine.loads), "it loads this learner's weights")
            assert (scorer.scored, engine.loads, engine.has_started_over) == ([], [3], True)
            assert rollouts.metrics()["rollout/unproven"] == 2
    finally:
        rollouts.close()


def until(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 300
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)
