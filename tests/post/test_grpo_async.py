"""Rollouts in worker processes beside the learner: the bound holds, nothing is lost, deaths cost little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.post.test_grpo import base, grpo, rollouts_of, trainer_of
from windlass.core.errors import NotFoundError, PreconditionError, SpecError
from windlass.post.control.asynchronous import AsyncRollouts, SharedRollouts
from windlass.post.control.records import oldest_version
from windlass.post.control.sample_frames import StoredSample, read_headers
from windlass.post.control.sample_reader import SampleFolder, read_samples
from windlass.post.rollout.engine import EngineError
from windlass.testing.distributed import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.parallel.world import World
from windlass.train.resolve import resolve

__all__ = ["base"]

pytestmark = pytest.mark.system

BOUND = ("async.bound=2", "objective.correction={clamp_max: 2.0}", "rollout.drop_constant_groups=false")


def learned(folder: Path) -> list[StoredSample]:
    """Return the samples that steps learned from."""
    return [each for each in read_samples(folder) if each.step is not None]


def check_samples(folder: Path, num_steps: int) -> None:
    """Check the promises: the bound, each sample once, no prompt skipped, nothing finished generated again."""
    samples = learned(folder)
    assert len(samples) == num_steps * 10 * 8
    lags = [each.step - oldest_version(each.scored.sample.spans) for each in samples if each.step is not None]
    assert 0 <= min(lags) <= max(lags) <= 2
    used = Counter((each.scored.sample.id.group, each.scored.sample.id.member) for each in samples)
    assert set(used.values()) == {1}
    log = SampleFolder(folder / "samples")
    rows = [
        row
        for number in log.numbers()
        for _, header in read_headers(log.file(number).read_bytes())[0]
        for row in header["rows"]
    ]
    generated = Counter((row[1], row[2]) for row in rows if row[0] == "sample")
    assert set(generated.values()) == {1}
    planned = Counter(row[1] for row in rows if row[0] == "plan")
    assert set(planned.values()) == {1}
    assert sorted(planned) == list(range(len(planned)))
    unused = set(planned) - {group for group, _ in used}
    assert len(unused) <= 2 * 10  # those of the batches ahead


def test_no_sample_is_older_than_the_bound_and_each_is_used_once(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *BOUND, "duration=12steps", "async.workers=2"))
    assert trainer.fit().is_finished
    check_samples(tmp_path / "run", 12)


class KillWorkers(TrainerCallback):
    """Kills a worker with SIGKILL after some of the steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps, self.num_killed = steps, 0

    def on_step_end(self) -> None:
        source = rollouts_of(self.trainer)._source
        assert isinstance(source, SharedRollouts)
        assert source._rollouts is not None
        if self.trainer.step in self.steps:
            for worker in list(source._rollouts._workers.values())[:1]:
                os.kill(worker.engine.pid, signal.SIGKILL)
                self.num_killed += 1


def test_a_worker_that_is_killed_costs_only_what_it_was_generating(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *BOUND, "duration=12steps", "async.workers=2"))
    killer = KillWorkers((2, 5, 6))
    trainer.add_callback("killer", killer)
    assert trainer.fit().is_finished
    assert killer.num_killed == 3
    check_samples(tmp_path / "run", 12)


def num_steps_stored(folder: Path) -> int:
    try:
        return len({each.step for each in learned(folder)})
    except NotFoundError:
        return 0


def test_a_learner_that_is_killed_resumes_with_what_is_stored(tmp_path: Path, base: Path) -> None:
    settings = (*BOUND, "duration=10steps", "checkpoint.every=3steps", "collect_every=1")
    overrides = grpo(tmp_path, base, *settings).overrides
    words = [sys.executable, "-m", "windlass", "train", "grpo", *overrides]
    for want in (2, 6):
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if num_steps_stored(tmp_path / "run") >= want:
                break
            time.sleep(0.005)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    last = trainer_of(grpo(tmp_path, base, *settings))
    assert last.fit().is_finished
    assert last.step == 10
    check_samples(tmp_path / "run", 10)


def test_a_stop_is_heard_while_samples_are_late(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("windlass.post.control.rollouts._NOTE_S", 0.1)
    monkeypatch.setattr(AsyncRollouts, "_greet", lambda *_: time.sleep(0.01))  # workers never become ready
    trainer = trainer_of(grpo(tmp_path, base, *BOUND))
    timer = threading.Timer(1.5, trainer.request_stop)
    timer.start()
    outcome = trainer.fit()
    timer.join()
    assert (outcome.end, outcome.step) == ("stopped", 0)
    assert "step 1 has waited 1 s for answers from workers, which are starting" in capfd.readouterr().err


def test_workers_that_keep_dying_end_the_run(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *BOUND, "async.probe_factor=1e-9"))
    monkeypatch.setattr("windlass.post.control.build.FLOOR", 1e-12)
    with pytest.raises(EngineError, match=r"worker-0 died 5 times without finishing a sample.*probe"):
        trainer.fit()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("async.bound=2",), "nothing corrects that"),
        (("async.workers=3",), "has no effect with `async.bound: 0`"),
        ((*BOUND, "async.ahead=3"), "leaves no room for 3 batches ahead"),
        ((*BOUND, "rollout.minibatches=2"), "leaves no room for 1 batches ahead"),
        ((*BOUND, "rollout.only=true"), "has no effect with `rollout.only`"),
    ],
)
def test_settings_without_effect_are_refused(
    tmp_path: Path, base: Path, overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        grpo(tmp_path, base, *overrides)


def _steps(world: World, overrides: tuple[str, ...]) -> dict[str, list[float]]:
    trainer = build_trainer(resolve("grpo", overrides), world)
    trainer.fit()
    return {name: value.flatten().tolist() for name, value in trainer.module.state_dict()["model"].items()}


@pytest.mark.parametrize("settings", [(), ("async.bound=1", "objective.correction={clamp_max: 2.0}")])
def test_two_learners_learn_from_shared_rollouts(tmp_path: Path, base: Path, settings: tuple[str, ...]) -> None:
    """Between two steps, each generates half; beside them, the first one's workers do."""
    overrides = grpo(tmp_path, base, "duration=3steps", *settings).overrides
    first, second = run_distributed_test(_steps, num_processes=2, args=(overrides,))
    assert first == second
    if settings:
        assert {each.step for each in learned(tmp_path / "run")} == {0, 1, 2}
        return
    alone = trainer_of(grpo(tmp_path, base, "duration=3steps", f"checkpoint.folder={tmp_path / 'alone'}"))
    alone.fit()
    for name, value in alone.module.state_dict()["model"].items():
        assert torch.allclose(torch.tensor(first[name]), value.flatten(), atol=1e-5), name


def test_groups_of_equal_rewards_are_replaced_before_they_are_reserved(tmp_path: Path, base: Path) -> None:
    settings = (*BOUND[:2], "rollout.refills=5", "rollout.temperature=0.6", "duration=3steps")
    trainer = trainer_of(grpo(tmp_path, base, *settings))
    trainer.fit()
    rewards: dict[int, set[float]] = {}
    for each in learned(tmp_path / "run"):
        rewards.setdefault(each.scored.sample.id.group, set()).add(each.scored.reward)
    assert len(rewards) == 30
    assert all(len(values) > 1 for values in rewards.values())
    assert "constant" in {each.dropped for each in read_samples(tmp_path / "run")}


def test_ray_without_a_cluster_is_refused(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    trainer = trainer_of(grpo(tmp_path, base, *BOUND, "async.place=ray"))
    with pytest.raises(PreconditionError, match="RAY_ADDRESS is not set"):
        trainer.fit()
