"""Rollouts in worker processes beside the learner: the bound holds, nothing is lost, deaths cost little."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.post.addition import TINY_MODEL
from tests.post.test_grpo import base, grpo, rollouts_of, trainer_of
from windlass.core.errors import NotFoundError, PreconditionError, SpecError
from windlass.post.control.asynchronous import AsyncRollouts
from windlass.post.control.shared import SharedRollouts
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.engine import EngineError
from windlass.post.samples.frames import StoredSample, read_headers
from windlass.post.samples.reader import SampleFolder, read_samples
from windlass.post.samples.records import oldest_version
from windlass.post.weights.probe import make_probe
from windlass.post.weights.store import Probe
from windlass.testing.distributed import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.modules.protocol import StepFacts
from windlass.train.parallel.world import World
from windlass.train.resolve import resolve
from windlass.train.trainer import Trainer

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
        deadline = time.monotonic() + 600
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
    waits_for, timers = AsyncRollouts.waits_for, list[threading.Timer]()

    def noted(self: AsyncRollouts) -> str:
        if not timers:  # the stop comes after the first note, while the next second is waited for
            timers.append(threading.Timer(0.3, trainer.request_stop))
            timers[0].start()
        return waits_for(self)

    monkeypatch.setattr(AsyncRollouts, "waits_for", noted)
    outcome = trainer.fit()
    timers[0].join()
    assert (outcome.end, outcome.step) == ("stopped", 0)
    assert re.search(r"step 1 has waited \d+ s for answers from workers, which are starting", capfd.readouterr().err)


def probe_that_refuses(*arguments: Any, **options: Any) -> Probe:
    probe = make_probe(*arguments, **options)
    return replace(probe, logp=tuple(tuple(each + 1.0 for each in row) for row in probe.logp))


def test_workers_that_keep_dying_end_the_run(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *BOUND))
    # no engine agrees with log-probabilities that are off by one, whatever its CPU rounds
    monkeypatch.setattr("windlass.post.control.build.make_probe", probe_that_refuses)
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
    first, second = run_distributed_test(_steps, num_processes=2, args=(overrides,), timeout_s=600.0)
    assert first == second
    if settings:
        assert {each.step for each in learned(tmp_path / "run")} == {0, 1, 2}
        return
    alone = trainer_of(grpo(tmp_path, base, "duration=3steps", f"checkpoint.folder={tmp_path / 'alone'}"))
    alone.fit()
    for name, value in alone.module.state_dict()["model"].items():
        difference = (torch.tensor(first[name]) - value.flatten()).abs().max().item()
        assert difference <= 1e-4, (name, difference)  # sums in another order; a step moves weights by 3e-3


ALWAYS = "def always(answer, truth):\n    return 1.0\n"


@pytest.mark.parametrize("refills", [0, 9])
def test_solved_prompts_are_retired_and_the_run_ends_with_the_last(tmp_path: Path, base: Path, refills: int) -> None:
    """With `refills` all their groups are dropped, which count as visits too."""
    (tmp_path / "mine.py").write_text(ALWAYS)
    settings = (
        *(*BOUND[:2], f"reward.verifiers=[{tmp_path / 'mine.py'}:always]", f"rollout.refills={refills}"),
        *("rollout.retire={visits: 2}", "data.batch_rows=5", "duration=50steps"),
    )
    trainer = trainer_of(grpo(tmp_path, base, *settings))
    assert trainer.fit().is_finished
    assert rollouts_of(trainer).metrics["rollout/retired_prompts"] == 20
    assert trainer.step < 20
    visits = Counter(
        each.scored.prompt_ids for each in read_samples(tmp_path / "run") if each.scored.sample.id.member == 0
    )
    assert min(visits.values()) >= 2


POOLS = "rollout.pools={easy: 0.75, hard: 0.1, weights: {easy: 0.1, hard: 0.5}}"


def test_a_killed_run_plans_by_what_was_reserved_before(tmp_path: Path, base: Path) -> None:
    """Each plan of the log follows from the batches in front of it, in whichever process it was made."""
    settings = (
        *BOUND,
        POOLS,
        "rollout.temperature=0.6",
        "checkpoint.every=4steps",
        "collect_every=1",
        "duration=12steps",
    )
    overrides = grpo(tmp_path, base, *settings).overrides
    words = [sys.executable, "-m", "windlass", "train", "grpo", *overrides]
    for want in (3, 7):
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline and num_steps_stored(tmp_path / "run") < want:
            time.sleep(0.005)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    last = trainer_of(grpo(tmp_path, base, *settings))
    assert last.fit().is_finished
    assert rollouts_of(last).metrics["rollout/pool_easy"] > 0
    loader = rollouts_of(trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'other'}")))
    log, samples = SampleFolder(tmp_path / "run" / "samples"), learned(tmp_path / "run")
    number, num_passed = 0, 0
    for segment in log.numbers():
        for _, header in read_headers(log.file(segment).read_bytes())[0]:
            for row in header["rows"]:
                if row[0] == "plan":
                    assert row[1] == loader.pools.next_group(number)
                    num_passed += row[1] - number
                    number = row[1] + 1
                elif row[0] == "reserve":
                    for at, rewards in loader.visits([each.scored for each in samples if each.step == row[1]]):
                        loader.pools.visit(at, rewards)
    assert num_passed > 0
    assert rollouts_of(last).pools.state_dict() == loader.pools.state_dict()  # that of the checkpoint, too


LONG = (
    # a new model, whose answers have 1 to 400 tokens, and batches that are learned while others are generated
    *(TINY_MODEL, "model.max_length=512", "data.tokenizer.path=bytes", "data.max_length=16", "rollout.group_size=2"),
    *("async.bound=4", "async.ahead=3", "objective.correction={clamp_max: 2.0}", "rollout.drop_constant_groups=false"),
    *("data.batch_rows=2", "rollout.max_new_tokens=400", "data.microbatch_tokens=2048", "duration=10steps"),
)


def stop_workers_while_learning(trainer: Trainer[TokenBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a batch to the next weights no token is generated: answers meet new weights however slow the learner is."""
    train, advance = trainer.module.train_batch, AsyncRollouts.advance

    def signal_workers(rollouts: AsyncRollouts | None, number: int) -> None:
        assert rollouts is not None
        for worker in list(rollouts._workers.values()):
            os.kill(worker.engine.pid, number)

    def train_batch(batch: TokenBatch, facts: StepFacts) -> object:
        source = rollouts_of(trainer)._source
        assert isinstance(source, SharedRollouts)
        if facts.step < 10:  # nothing follows the last one
            signal_workers(source._rollouts, signal.SIGSTOP)
        return train(batch, facts)

    def advanced(self: AsyncRollouts, *arguments: Any) -> None:
        advance(self, *arguments)
        signal_workers(self, signal.SIGCONT)

    monkeypatch.setattr(trainer.module, "train_batch", train_batch)
    monkeypatch.setattr(AsyncRollouts, "advance", advanced)


@pytest.mark.parametrize("in_flight", ["recompute", "keep", "finish"])
def test_long_answers_go_on_with_new_weights_as_the_setting_says(
    tmp_path: Path, base: Path, in_flight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *LONG, f"async.in_flight={in_flight}"))
    stop_workers_while_learning(trainer, monkeypatch)
    assert trainer.fit().is_finished
    samples = learned(tmp_path / "run")
    assert len(samples) == 10 * 2 * 2
    lags = [each.step - oldest_version(each.scored.sample.spans) for each in samples if each.step is not None]
    assert 1 <= max(lags) <= 4
    spans = [each.scored.sample.spans for each in samples]
    for each in spans:
        versions = [span.version for span in each if span.version is not None]
        assert versions == sorted(set(versions))  # each load begins one span
        reads = [span.oldest_read for span in each]
        assert reads == (versions[:1] * len(reads) if in_flight == "keep" else versions)
    longest = max(len(each) for each in spans)
    assert longest == 1 if in_flight == "finish" else longest >= 3


@pytest.mark.parametrize("settings", [(), ("async.bound=3", "objective.correction={clamp_max: 2.0}")])
def test_two_learners_take_several_steps_and_resume_within_a_batch(
    tmp_path: Path, base: Path, settings: tuple[str, ...]
) -> None:
    common = ("rollout.minibatches=2", "duration=4steps", *settings)
    for more in (("stop=3steps",), ()):
        overrides = grpo(tmp_path, base, *common, *more).overrides
        first, second = run_distributed_test(_steps, num_processes=2, args=(overrides,), timeout_s=600.0)
        assert first == second
    found = learned(tmp_path / "run")
    assert {each.step for each in found} == {0, 2}
    assert len({(each.scored.sample.id, each.step) for each in found}) == len(found) == 2 * 80
    if settings:
        return
    alone = trainer_of(grpo(tmp_path, base, *common, f"checkpoint.folder={tmp_path / 'alone'}"))
    alone.fit()
    weights = torch.cat([value.flatten() for value in alone.module.state_dict()["model"].values()])
    difference = (torch.tensor([each for name in first for each in first[name]]) - weights).abs()
    assert float(difference.mean()) < 1e-6  # Adam magnifies the rounding of a few gradients that are almost 0


def test_groups_of_equal_rewards_are_replaced_before_they_are_reserved(tmp_path: Path, base: Path) -> None:
    settings = (*BOUND[:2], "rollout.refills=5", "rollout.temperature=0.6", "duration=3steps")
    sums = [(number * 7 % 10, number * 3 % 10) for number in range(20)]
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums]
    for row in rows[::5]:
        row["answer"] = "no answer"  # longer than any answer: its group's rewards are equal on every machine
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
