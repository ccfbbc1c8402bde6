"""Advantages on whole groups: against plain Python, and what masks, errors and constant groups do."""

from __future__ import annotations

import math
import statistics
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.post.objectives.advantage import Advantages, advantages_of, turn_advantages_of
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.objectives.presets import preset

BASELINES = ("group", "leave_one_out", "batch", "none")
SCALES = ("none", "group_std", "batch_std", "whiten", "group_mean")
CONFIGS = [
    AdvantageConfig(baseline=baseline, scale=scale, std=std)  # type: ignore[arg-type]
    for baseline, scale, std in product(BASELINES, SCALES, ("sample", "population"))
]


def of(rewards: list[float], groups: list[int], config: AdvantageConfig, kept: list[bool] | None = None) -> Advantages:
    is_kept = None if kept is None else torch.tensor(kept)
    return advantages_of(torch.tensor(rewards), torch.tensor(groups), config, is_kept_S=is_kept)


def deviation(values: list[float], std: str) -> float:
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) if std == "sample" else statistics.pstdev(values)


def plainly(rewards: list[float], groups: list[int], config: AdvantageConfig) -> list[float]:
    members = {group: [reward for reward, own in zip(rewards, groups, strict=True) if own == group] for group in groups}
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        own = members[group]
        baseline = {
            "group": statistics.mean(own),
            "leave_one_out": (sum(own) - reward) / max(len(own) - 1, 1),
            "batch": statistics.mean(rewards),
            "none": 0.0,
        }[config.baseline]
        found.append(reward - baseline)
    if config.scale == "whiten":
        shift, divisor = statistics.mean(found), deviation(found, config.std)
        found = [(value - shift) / (divisor + config.epsilon) for value in found]
    for place, group in enumerate(groups):
        divisor = {
            "group_std": deviation(members[group], config.std) + config.epsilon,
            "batch_std": deviation(rewards, config.std) + config.epsilon,
            "group_mean": statistics.mean(members[group]) + config.epsilon,
        }.get(config.scale, 1.0)
        found[place] /= divisor
        if config.baseline in {"group", "leave_one_out"} and len(members[group]) == 1:
            found[place] = 0.0
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.baseline}-{config.scale}-{config.std}")
@settings(max_examples=15)
@given(answers=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=12))
def test_any_rewards_in_any_order(config: AdvantageConfig, answers: list[tuple[int, int]]) -> None:
    rewards, groups = [reward / 4 for reward, _ in answers], [group for _, group in answers]
    found = of(rewards, groups, config)
    assert found.values_S.dtype == torch.float64
    assert found.values_S.tolist() == pytest.approx(plainly(rewards, groups, config), rel=1e-9, abs=1e-9)


def test_masks_are_applied_after_whole_groups() -> None:
    kept = [False, True, True, True, True, True, True, False]
    found = of([1, 0, 0, 0, 1, 1, 1, 1], [0] * 4 + [1] * 4, AdvantageConfig(), kept)
    assert found.values_S.tolist() == [0.0, -0.25, -0.25, -0.25, 0.0, 0.0, 0.0, 0.0]
    assert found.is_trained_S.tolist() == kept
    assert found.has_variance_G.tolist() == [True, False]
    assert found.num_constant_groups == 1


def test_an_answer_that_could_not_be_scored_is_not_a_zero() -> None:
    found = of([1.0, math.nan, 0.5, math.nan, math.nan, 3.0], [0, 0, 0, 1, 1, 1], AdvantageConfig())
    assert found.values_S.tolist() == [0.25, 0.0, -0.25, 0.0, 0.0, 0.0]
    assert found.is_trained_S.tolist() == [True, False, True, False, False, True]
    assert found.num_scored_G.tolist() == [2, 1]
    assert found.has_variance_G.tolist() == [True, False]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.baseline}-{config.scale}-{config.std}")
def test_no_answers_and_groups_without_any_score(config: AdvantageConfig) -> None:
    assert of([], [], config).values_S.tolist() == []
    found = of([math.nan, math.nan, 1.0, 0.0], [0, 0, 1, 1], config)
    assert found.values_S.isfinite().all()
    assert found.values_S[:2].tolist() == [0.0, 0.0]
    assert found.has_variance_G.tolist() == [False, True]


@pytest.mark.parametrize("scale", ["group_std", "none"])
def test_equal_rewards_that_are_no_binary_fraction_have_no_variance(scale: str) -> None:
    found = of([0.1, 0.1, 0.1], [0, 0, 0], AdvantageConfig(scale=scale))  # type: ignore[arg-type]
    assert not found.has_variance_G.any()
    assert found.values_S.tolist() == pytest.approx([0.0] * 3, abs=1e-9)


def test_maximum_likelihood_weighs_successes_equally_whatever_the_pass_rate() -> None:
    found = of([1, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4, preset("maxrl").advantage)
    assert found.values_S.tolist() == pytest.approx([3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1], rel=1e-5)


def test_turns_have_the_sum_of_their_own_and_later_normalised_rewards() -> None:
    """Shao et al. 2024, DeepSeekMath, section 4.1.3: mean and deviation of all rewards of the group's steps."""
    config = AdvantageConfig(baseline="group", scale="group_std", std="population", epsilon=0.0, turns="process")
    rewards = [[0.0, 1.0], [1.0], [0.0, 0.0, 2.0]]
    found, turns = turn_advantages_of(
        [*rewards, [math.nan, math.nan], [5.0]],
        torch.tensor([0, 0, 0, 0, 1]),
        config,
        is_kept_S=torch.tensor([True, False, True, True, True]),
    )
    flat = [reward for each in rewards for reward in each]
    mean, spread = statistics.mean(flat), statistics.pstdev(flat)
    normal = [[(reward - mean) / spread for reward in each] for each in rewards]
    assert turns[0] == pytest.approx([sum(normal[0]), normal[0][1]])
    assert turns[2] == pytest.approx([sum(normal[2]), sum(normal[2][1:]), normal[2][2]])
    assert turns[1] == [0.0]  # not kept, but part of the group
    assert turns[3:] == [[0.0, 0.0], [0.0]]  # not scored; alone in its group
    assert found.is_trained_S.tolist() == [True, False, True, False, True]
    assert found.has_variance_G.tolist() == [True, False]
    assert found.values_S.tolist() == pytest.approx([each[0] for each in turns])
