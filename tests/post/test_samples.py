"""Samples of a run on disk: a resumed run learns from the stored ones, and another run can."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.post.test_grpo import base, rollouts_of, trainer_of
from tests.post.test_grpo import grpo as uncorrected
from windlass.core.errors import NotFoundError, PreconditionError, SpecError
from windlass.post import StoredSample, read_samples
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.samples.reader import SampleFolder
from windlass.train.resolve import ResolvedRecipe
from windlass.train.trainer import Trainer

__all__ = ["base"]

STEPS = "duration=6steps"


def grpo(folder: Path, start: Path, *overrides: str) -> ResolvedRecipe:
    """Resolve a run that corrects for samples of another policy, as replays must."""
    return uncorrected(folder, start, "objective.correction={clamp_max: 2}", *overrides)


def stored(folder: Path) -> list[StoredSample]:
    return list(read_samples(folder))


def num_written(folder: Path) -> int:
    """Count the samples of all frames, whether they still count or not."""
    log = SampleFolder(folder / "samples")
    content = [log.file(number).read_bytes() for number in log.numbers()]
    return sum(piece.count(b'["sample",') for piece in content)


def same_weights(a: Trainer[TokenBatch], b: Trainer[TokenBatch]) -> bool:
    state = a.module.model.state_dict()
    return all(torch.equal(value, state[name]) for name, value in b.module.model.state_dict().items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, base: Path) -> tuple[Path, Trainer[TokenBatch]]:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = trainer_of(grpo(folder, base, STEPS))
    assert trainer.fit().is_finished
    return folder, trainer


def test_every_step_is_stored_before_it_is_learned_from(whole: tuple[Path, Trainer[TokenBatch]]) -> None:
    samples = stored(whole[0] / "run")
    assert [each.step for each in samples] == [step for step in range(6) for _ in range(80)]
    assert [each.scored.sample.id.group for each in samples] == [group for group in range(60) for _ in range(8)]
    assert {span.version for each in samples[-80:] for span in each.scored.sample.spans} == {5}
    assert all(each.scored.rewards["exact"] in (0.0, 1.0) for each in samples)
    assert all(each.prompt.endswith("=") for each in samples)


def test_killed_processes_resume_with_the_stored_batches(
    tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]]
) -> None:
    """SIGKILL at two moments; nothing that a step reserved is generated again, and no bit differs."""
    settings = grpo(tmp_path, base, STEPS, "checkpoint.every=4steps", "collect_every=1").overrides
    words = [sys.executable, "-m", "windlass", "train", "grpo", *settings]
    for want in (3, 6):
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            folder = tmp_path / "run" / "samples"
            if folder.exists() and len({each.step for each in stored_if_any(folder)}) >= want:
                break
            time.sleep(0.005)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    last = trainer_of(grpo(tmp_path, base, STEPS, "checkpoint.every=4steps"))
    last.fit()
    assert last.step == 6
    assert same_weights(whole[1], last)
    assert num_written(tmp_path / "run") == num_written(whole[0] / "run") == 480
    assert [each.scored.sample.ids for each in stored(tmp_path / "run")] == [
        each.scored.sample.ids for each in stored(whole[0] / "run")
    ]


def stored_if_any(folder: Path) -> list[StoredSample]:
    try:
        return stored(folder)
    except NotFoundError:
        return []


def test_a_resumed_run_generates_nothing_that_is_stored(
    tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run again without its checkpoints: the same start, so the same batches."""
    shutil.copytree(whole[0] / "run" / "samples", tmp_path / "run" / "samples")
    again = trainer_of(grpo(tmp_path, base, STEPS))
    monkeypatch.setattr(EmbeddedEngine, "submit", lambda *_: pytest.fail("it generated"))
    again.fit()
    assert same_weights(whole[1], again)


def test_other_settings_begin_anew(tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]]) -> None:
    shutil.copytree(whole[0] / "run" / "samples", tmp_path / "run" / "samples")
    other = trainer_of(grpo(tmp_path, base, "duration=1step", "rollout.temperature=0.5"))
    other.fit()
    assert {each.step for each in stored(tmp_path / "run")} == {0}
    assert num_written(tmp_path / "run") == 480 + 80


def test_a_start_from_scratch_by_wish_begins_anew(tmp_path: Path, base: Path) -> None:
    trainer_of(grpo(tmp_path, base, "duration=1step")).fit()
    trainer_of(grpo(tmp_path, base, "duration=1step", "checkpoint.load.strategy=never")).fit()
    assert num_written(tmp_path / "run") == 160
    assert len(stored(tmp_path / "run")) == 80


def test_a_run_without_checkpoints_stores_nothing(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_of(grpo(tmp_path, base, "duration=1step", "no_checkpoints=true")).fit()
    assert list(tmp_path.rglob("samples")) == []


def test_a_second_writer_of_the_samples_is_refused(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.post.samples.log._LOCK_WAIT_S", 0.1)
    first = trainer_of(grpo(tmp_path, base))
    next(iter(first.loader))
    with pytest.raises(PreconditionError, match="another process writes the samples"):
        next(iter(trainer_of(grpo(tmp_path, base)).loader))
    rollouts_of(first).close()


def test_old_samples_are_deleted_below_the_oldest_checkpoint(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.post.samples.log._SEGMENT_BYTES", 1)
    settings = ("rollout.keep_samples=1", "checkpoint.every=2steps", "checkpoint.keep=1", "checkpoint.is_async=false")
    trainer_of(grpo(tmp_path, base, STEPS, *settings)).fit()
    assert {each.step for each in stored(tmp_path / "run")} == {5}


def test_another_run_learns_from_the_stored_samples(
    tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]]
) -> None:
    other = trainer_of(grpo(tmp_path, base, STEPS, f"rollout.replay={whole[0] / 'run'}"))
    assert other.fit().is_finished
    assert same_weights(whole[1], other)
    assert rollouts_of(other).metrics == rollouts_of(whole[1]).metrics
    assert not (tmp_path / "run" / "samples").exists()


def test_a_replay_ends_with_its_samples(tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]]) -> None:
    other = trainer_of(grpo(tmp_path, base, "duration=50steps", f"rollout.replay={whole[0] / 'run'}"))
    other.fit()
    assert other.step == 6


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("data.template=chatml", r"has another tokenizer and template(?s:.*)\[samples-mismatch\]"),
        ("rollout.temperature=0.5", "has another temperature: 1.0, not 0.5"),
        ("reward.verifiers=[exact, f1]", "has no values of the verifier `f1`"),
        ("rollout.only=true", "nothing is generated"),
        ("objective.correction=null", "answers are of another policy, and nothing corrects that"),
    ],
)
def test_samples_that_do_not_fit_are_refused(
    tmp_path: Path, base: Path, whole: tuple[Path, Trainer[TokenBatch]], override: str, why: str
) -> None:
    with pytest.raises(SpecError, match=why):
        trainer_of(grpo(tmp_path, base, "data.max_length=60", f"rollout.replay={whole[0] / 'run'}", override))


def test_a_replay_of_a_folder_without_samples_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(NotFoundError, match="no samples in"):
        trainer_of(grpo(tmp_path, base, f"rollout.replay={tmp_path}"))


def test_rollouts_only_learns_nothing(tmp_path: Path, base: Path) -> None:
    settings = ("rollout.only=true", "optim.weight_decay=0.1", "duration=3steps")
    trainer = trainer_of(grpo(tmp_path, base, *settings))
    before = {name: value.clone() for name, value in trainer.module.model.state_dict().items()}
    assert trainer.fit().is_finished
    assert all(torch.equal(value, before[name]) for name, value in trainer.module.model.state_dict().items())
    samples = stored(tmp_path / "run")
    assert [each.step for each in samples] == [step for step in range(3) for _ in range(80)]
    assert {span.version for each in samples for span in each.scored.sample.spans} == {0}
    learner = trainer_of(
        grpo(
            tmp_path,
            base,
            "duration=3steps",
            f"rollout.replay={tmp_path / 'run'}",
            f"checkpoint.folder={tmp_path / 'b'}",
        )
    )
    learner.fit()
    assert learner.step == 3
    assert not same_weights(trainer, learner)
