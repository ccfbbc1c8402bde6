"""Rewards of answers from the values of verifiers: their weighted sum, shaped by length.

Legend: S answers of a batch, in order of group and member; G groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from windlass.post.control.config import RewardsConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.objectives.advantage import advantages_of
from windlass.post.objectives.config import AdvantageConfig

__all__ = [
    "normalised_sums",
    "overlong_penalties",
    "relative_lengths",
    "shaped_rewards",
    "shuffled",
    "token_values",
    "turn_rewards",
]

_SHUFFLE = 20261123
"""Seed of the permutations of `reward.shuffle`, the same in all runs."""

_BY_GROUP = AdvantageConfig(baseline="group", scale="group_std")


def shaped_rewards(
    scored: Sequence[ScoredSample], groups_S: Tensor, config: RewardsConfig, *, max_new_tokens: int
) -> Tensor:
    """Return rewards, float64 (S,); NaN where a verifier could not score the answer."""
    rewards_S = torch.tensor([each.reward for each in scored], dtype=torch.float64)
    lengths_S = torch.tensor([each.sample.num_policy_tokens for each in scored], dtype=torch.float64)
    is_cut_S = torch.tensor([each.sample.finish == "length" for each in scored])
    shaping_S = torch.zeros_like(rewards_S)
    if config.overlong is not None:
        shaping_S = shaping_S - config.overlong.penalty * overlong_penalties(
            lengths_S, max_new_tokens=max_new_tokens, buffer=config.overlong.buffer
        )
    if config.length_weight:
        shaping_S = shaping_S + config.length_weight * relative_lengths(lengths_S, groups_S, rewards_S > 0)
    found_S = normalised_sums(scored, groups_S, config, shaping_S) if config.normalise else rewards_S + shaping_S
    found_S = found_S if config.truncated is None else found_S.masked_fill(is_cut_S, config.truncated)
    return shuffled(found_S, groups_S, [each.sample.id.group for each in scored]) if config.shuffle else found_S


def shuffled(rewards_S: Tensor, groups_S: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return rewards permuted in their group; those of NaN stay.

    Args:
        numbers: number of each answer's group in the run, which determines the permutation.
    """
    found_S = rewards_S.clone()
    for group in groups_S.unique().tolist():
        places = ((groups_S == group) & ~rewards_S.isnan()).nonzero()[:, 0]
        if len(places):
            chance = np.random.default_rng([_SHUFFLE, numbers[int(places[0])]])
            found_S[places] = rewards_S[places[torch.from_numpy(chance.permutation(len(places)))]]
    return found_S


def overlong_penalties(lengths_S: Tensor, *, max_new_tokens: int, buffer: int) -> Tensor:
    """Return penalties that rise from 0 before the last `buffer` tokens to 1 at the limit.

    Source: Yu et al. 2025, "DAPO", eq. 13.
    """
    return ((lengths_S - (max_new_tokens - buffer)) / buffer).clamp(0.0, 1.0)


def relative_lengths(lengths_S: Tensor, groups_S: Tensor, is_correct_S: Tensor) -> Tensor:
    """Return 0.5 for the shortest answer of its group down to -0.5 for the longest; not above 0 for a wrong one.

    0 in groups of equal lengths. Source: Kimi Team 2025, "Kimi k1.5", section 2.3.3.
    """
    num_groups = int(groups_S.max()) + 1
    least_G, most_G = (
        lengths_S.new_zeros(num_groups).scatter_reduce(0, groups_S, lengths_S, reduce, include_self=False)
        for reduce in ("amin", "amax")
    )
    spans_S = (most_G - least_G)[groups_S]
    found_S = 0.5 - (lengths_S - least_G[groups_S]) / spans_S.clamp(min=1.0)
    return torch.where(spans_S > 0, torch.where(is_correct_S, found_S, found_S.clamp(max=0.0)), 0.0)


def normalised_sums(
    scored: Sequence[ScoredSample], groups_S: Tensor, config: RewardsConfig, shaping_S: Tensor
) -> Tensor:
    """Return weighted sums of values that are normalised in their group first, each verifier by itself.

    So a verifier with a small spread counts as much as one with a large one. An answer that one verifier could not
    score is NaN. Source: Liu et al. 2026, "GDPO".
    """
    total_S = advantages_of(shaping_S, groups_S, _BY_GROUP).values_S
    for verifier in config.verifiers:
        values = [each.rewards[verifier.name] for each in scored]
        values_S = torch.tensor([float("nan") if value is None else value for value in values], dtype=torch.float64)
        own_S = advantages_of(values_S, groups_S, _BY_GROUP).values_S
        total_S = total_S + verifier.weight * own_S.masked_fill(values_S.isnan(), float("nan"))
    return total_S


def turn_rewards(scored: ScoredSample, reward: float) -> list[float]:
    """Return the rewards of an answer's turns, whose sum is `reward`.

    What verifiers and shaping add to the environment's own rewards belongs to the last turn. NaN: not scored.
    """
    episode = scored.sample.episode
    if episode is None or not episode.turns or math.isnan(reward):
        return [reward] * (1 if episode is None else max(1, len(episode.turns)))
    own = [turn.reward or 0.0 for turn in episode.turns]
    return [*own[:-1], own[-1] + reward - math.fsum(own)]


def token_values(scored: ScoredSample, values: Sequence[float]) -> np.ndarray:
    """Return for each token of an answer the value of its turn, float32."""
    episode = scored.sample.episode
    stops = [len(scored.sample.ids)] if episode is None or not episode.turns else [turn.stop for turn in episode.turns]
    lengths = np.diff(stops, prepend=0)
    found = np.repeat(np.asarray(values, dtype=np.float32), lengths)
    return np.concatenate([found, np.zeros(len(scored.sample.ids) - stops[-1], dtype=np.float32)])
