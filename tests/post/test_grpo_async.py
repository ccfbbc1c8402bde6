"""Rollouts in worker processes beside the learner: the bound holds, nothing is lost, deaths cost little."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.post.test_grpo import base, grpo, trainer_of
from windlass.post import StoredSample, read_samples
from windlass.post.control.records import oldest_version

__all__ = ["base"]

BOUND = ("async.bound=2", "objective.correction={clamp_max: 2.0}", "rollout.drop_constant_groups=false")


def learned(folder: Path) -> list[StoredSample]:
    """Return the samples that steps learned from."""
    return [each for each in read_samples(folder) if each.step is not None]


def test_no_sample_is_older_than_the_bound_and_each_is_used_once(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *BOUND, "duration=12steps", "async.workers=2"))
    assert trainer.fit().is_finished
    samples = learned(tmp_path / "run")
    assert len(samples) == 12 * 10 * 8
    lags = [each.step - oldest_version(each.scored.sample.spans) for each in samples if each.step is not None]
    assert 0 <= min(lags) <= max(lags) <= 2
    used = Counter((each.scored.sample.id.group, each.scored.sample.id.member) for each in samples)
    assert set(used.values()) == {1}
