"""Shaping of rewards by length, and sums of normalised verifiers, against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from windlass.post.control.config import OverlongConfig, RewardsConfig, VerifierConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.shaping import (
    overlong_penalties,
    relative_lengths,
    shaped_rewards,
    shuffled,
    token_values,
    turn_rewards,
)
from windlass.post.rollout.types import Episode, Finish, Sample, SampleId, TokenSpan, TurnEnd

GROUPS = torch.tensor([0, 0, 1, 1])


def answer(group: int, length: int, rewards: Mapping[str, float | None], finish: Finish = "stop") -> ScoredSample:
    sample = Sample(
        id=SampleId(group=group, member=0),
        ids=(1,) * length,
        logp=(-1.0,) * length,
        raw_logp=None,
        spans=(TokenSpan(start=0, stop=length, version=0),),
        finish=finish,
    )
    values = [float("nan") if value is None else value for value in rewards.values()]
    return ScoredSample(sample=sample, prompt_ids=(1,), text="", rewards=rewards, reward=sum(values))


def config(**settings: object) -> RewardsConfig:
    return RewardsConfig(verifiers=(VerifierConfig(name="exact"),), **settings)  # type: ignore[arg-type]


FOUR = [
    answer(0, 2, {"exact": 1.0}),
    answer(0, 10, {"exact": 1.0}, "length"),
    answer(1, 6, {"exact": 0.0}),
    answer(1, 8, {"exact": None}),
]


def test_the_overlong_penalty_rises_over_the_buffer() -> None:
    lengths_S = torch.tensor([1.0, 16.0, 17.0, 18.0, 20.0])
    assert overlong_penalties(lengths_S, max_new_tokens=20, buffer=4).tolist() == [0.0, 0.0, 0.25, 0.5, 1.0]
    found = shaped_rewards(FOUR, GROUPS, config(overlong=OverlongConfig(buffer=4, penalty=2.0)), max_new_tokens=10)
    assert found[:3].tolist() == [1.0, -1.0, 0.0]
    assert math.isnan(found[3])


def test_short_answers_of_a_group_gain_and_wrong_ones_never_do() -> None:
    lengths_S = torch.tensor([10.0, 20.0, 30.0, 10.0, 30.0, 7.0], dtype=torch.float64)
    groups_S = torch.tensor([0, 0, 0, 1, 1, 2])
    is_correct_S = torch.tensor([True, True, True, False, False, True])
    assert relative_lengths(lengths_S, groups_S, is_correct_S).tolist() == [0.5, 0.0, -0.5, 0.0, -0.5, 0.0]
    found = shaped_rewards(FOUR, GROUPS, config(length_weight=0.4), max_new_tokens=10)
    assert found[:3].tolist() == pytest.approx([1.2, 0.8, 0.0])


def test_a_truncated_answer_gets_the_reward_that_is_set() -> None:
    found = shaped_rewards(FOUR, GROUPS, config(truncated=-3.0), max_new_tokens=10)
    assert found[:3].tolist() == [1.0, -3.0, 0.0]


def test_without_shaping_rewards_are_the_sums_of_verifiers() -> None:
    assert shaped_rewards(FOUR, GROUPS, config(), max_new_tokens=10)[:3].tolist() == [1.0, 1.0, 0.0]


def test_a_normalised_verifier_counts_whatever_its_spread() -> None:
    rewards = [{"a": 0.0, "b": 0.0}, {"a": 100.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, {"a": 3.0, "b": 0.0}]
    four = [answer(place // 2, 3, each) for place, each in enumerate(rewards)]
    own = RewardsConfig(verifiers=(VerifierConfig(name="a"), VerifierConfig(name="b", weight=0.5)), normalise=True)
    found = shaped_rewards(four, GROUPS, own, max_new_tokens=10)
    root = 0.5**0.5  # a pair's members are half a standard deviation (n - 1) times the root of 2 from their mean
    assert found.tolist() == pytest.approx([-1.5 * root, 1.5 * root, -0.5 * root, 0.5 * root], rel=1e-3)
    four[0] = answer(0, 3, {"a": None, "b": 0.0})
    assert math.isnan(shaped_rewards(four, GROUPS, own, max_new_tokens=10)[0])


def test_replaced_and_normalised_rewards_exclude_each_other() -> None:
    assert [problem[0] for problem in config(truncated=0.0, normalise=True).check()] == ["truncated"]


def test_what_verifiers_add_belongs_to_the_last_turn() -> None:
    ids, turns = tuple(range(6)), (TurnEnd(stop=2, reward=0.5), TurnEnd(stop=5, reward=None))
    sample = Sample(
        id=SampleId(group=0, member=0),
        ids=ids,
        logp=(0.0,) * 6,
        raw_logp=None,
        spans=(TokenSpan(start=0, stop=6, version=0),),
        finish="stop",
        episode=Episode(environment="x", turns=turns),
    )
    own = ScoredSample(sample=sample, prompt_ids=(1,), text="", rewards={}, reward=2.0)
    assert turn_rewards(own, 2.0) == [0.5, 1.5]
    assert all(math.isnan(each) for each in turn_rewards(own, math.nan))
    assert token_values(own, [3.0, 4.0]).tolist() == [3.0, 3.0, 4.0, 4.0, 4.0, 0.0]
    plain = replace(own, sample=replace(sample, episode=None))
    assert turn_rewards(plain, 2.0) == [2.0]
    assert token_values(plain, [3.0]).tolist() == [3.0] * 6


def test_shuffled_rewards_are_those_of_the_group_at_other_answers() -> None:
    groups_S = torch.arange(300).repeat_interleave(4)
    rewards_S = torch.tensor([1.0, 0.0, 0.0, math.nan]).double().repeat(300) + groups_S  # of each group, its own
    numbers = groups_S.tolist()
    found_S = shuffled(rewards_S, groups_S, numbers)
    assert found_S.nan_to_num().view(-1, 4).sort().values.equal(rewards_S.nan_to_num().view(-1, 4).sort().values)
    assert found_S.isnan().equal(rewards_S.isnan())
    share = float((found_S - groups_S).view(-1, 4)[:, 0].mean())
    assert 0.25 < share < 0.42  # a third: independent of the answer
    whole = groups_S >= 150
    later = shuffled(rewards_S[whole], groups_S[whole] - 150, numbers[600:])
    assert later.nan_to_num().equal(found_S[whole].nan_to_num())  # by the group's number in the run alone


def test_a_recipe_shuffles_what_it_learns_from() -> None:
    groups_S = torch.zeros(4, dtype=torch.int64)
    rows = [answer(7, 3, {"exact": float(place)}) for place in range(4)]
    plain, other = (shaped_rewards(rows, groups_S, config(shuffle=each), max_new_tokens=10) for each in (False, True))
    assert plain.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert other.tolist() != plain.tolist()
    assert other.sort().values.equal(plain)
