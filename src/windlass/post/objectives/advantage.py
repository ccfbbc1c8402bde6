"""Advantages of answers from rewards, on whole groups; which answers are trained on is decided afterwards.

A group is all answers to one prompt. If answers are dropped first, the rewards of two prompts can fall into one group.

Legend: S answers of a batch, G groups of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windlass.post.objectives.config import AdvantageConfig

__all__ = ["Advantages", "advantages_of", "turn_advantages_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Advantages of a batch.

    Attributes:
        values_S: float64; 0 where the answer is not trained on or has no reward.
        is_trained_S: whether the answer has a reward and was kept.
        has_variance_G: whether the group has two different rewards; without, all its advantages are 0 unless the
            baseline spans more than the group.
        num_scored_G: number of the group's answers (or of their turns) that have a reward.
    """

    values_S: Tensor
    is_trained_S: Tensor
    has_variance_G: Tensor
    num_scored_G: Tensor

    @property
    def num_constant_groups(self) -> int:
        """Return the number of groups whose rewards are all equal."""
        return int((~self.has_variance_G).sum())


def advantages_of(
    rewards_S: Tensor, groups_S: Tensor, config: AdvantageConfig, *, is_kept_S: Tensor | None = None
) -> Advantages:
    """Return advantages of all answers of a batch.

    Args:
        rewards_S: rewards; NaN: the answer could not be scored. It is left out of means and deviations.
        groups_S: int64 index of each answer's group, from 0; each group is whole.
        is_kept_S: answers to train on, such as those that were not truncated; applied after the computation.

    Returns:
        Advantages; a group with one scored answer has none.
    Sources: group, group_std: Shao et al. 2024, "DeepSeekMath", section 4.1.2; none as scale: Liu et al. 2025,
        "Understanding R1-Zero-like training", section 3.1; leave_one_out: Kool et al. 2019; whiten: Hu et al. 2025,
        "REINFORCE++", eq. 8; group_mean: Tajwar et al. 2026, "Maximum likelihood reinforcement learning".
    """
    rewards_S = rewards_S.double()
    is_scored_S = ~rewards_S.isnan()
    groups = _Groups(rewards_S.where(is_scored_S, 0.0), is_scored_S, groups_S.long())
    values_S = (groups.rewards_S - _baselines(groups, config)) * groups.weights_S
    values_S = _scaled(values_S, groups, config)
    if config.baseline in {"group", "leave_one_out"}:
        values_S = values_S.where(groups.counts_G[groups.places_S] > 1.0, 0.0)
    is_trained_S = is_scored_S if is_kept_S is None else is_scored_S & is_kept_S
    return Advantages(
        values_S=values_S.where(is_trained_S, 0.0),
        is_trained_S=is_trained_S,
        has_variance_G=groups.spans_G() > 0.0,
        num_scored_G=groups.counts_G.long(),
    )


def turn_advantages_of(
    rewards: Sequence[Sequence[float]], groups_S: Tensor, config: AdvantageConfig, *, is_kept_S: Tensor
) -> tuple[Advantages, list[list[float]]]:
    """Return advantages of answers whose turns have rewards, and those of each turn.

    Each reward is normalised among all turns of its group; a turn's advantage is the sum over itself and later turns.

    Args:
        rewards: of the turns of each answer, at least one; NaN: the answer could not be scored.
    Source: Shao et al. 2024, "DeepSeekMath", section 4.1.3.
    """
    answers_T = torch.tensor([answer for answer, turns in enumerate(rewards) for _ in turns])
    rewards_T = torch.tensor([reward for turns in rewards for reward in turns], dtype=torch.float64)
    found = advantages_of(rewards_T, groups_S[answers_T], config, is_kept_S=is_kept_S[answers_T])
    parts = found.values_S.split([len(turns) for turns in rewards])
    later = [part.flip(0).cumsum(0).flip(0) for part in parts]
    is_trained_S = torch.stack([part.all() for part in found.is_trained_S.split([len(turns) for turns in rewards])])
    whole = replace(found, values_S=torch.stack([part[0] for part in later]), is_trained_S=is_trained_S)
    return whole, [part.tolist() for part in later]


class _Groups:
    """Rewards, with 0 for answers without one, and sums over groups."""

    def __init__(self, rewards_S: Tensor, is_scored_S: Tensor, places_S: Tensor) -> None:
        self.rewards_S, self.weights_S, self.places_S = rewards_S, is_scored_S.double(), places_S
        self.num = int(places_S.max()) + 1 if len(places_S) else 0
        self.counts_G = self.sums(self.weights_S)
        self.means_G = self.sums(rewards_S) / self.counts_G.clamp(min=1.0)

    def sums(self, values_S: Tensor) -> Tensor:
        return values_S.new_zeros(self.num).index_add(0, self.places_S, values_S)

    def spans_G(self) -> Tensor:  # noqa: N802  it carries its shape
        """Return the largest minus the smallest reward."""
        spans = []
        for fill, reduce in ((-torch.inf, "amax"), (torch.inf, "amin")):
            values_S = self.rewards_S.where(self.weights_S > 0.0, fill)
            spans.append(values_S.new_full((self.num,), fill).scatter_reduce(0, self.places_S, values_S, reduce))
        return spans[0] - spans[1]


def _baselines(groups: _Groups, config: AdvantageConfig) -> Tensor:
    if config.baseline == "none":
        return torch.zeros_like(groups.rewards_S)
    if config.baseline == "batch":
        return (groups.rewards_S.sum() / groups.weights_S.sum().clamp(min=1.0)).expand_as(groups.rewards_S)
    if config.baseline == "group":
        return groups.means_G[groups.places_S]
    totals_S = groups.sums(groups.rewards_S)[groups.places_S]
    return (totals_S - groups.rewards_S) / (groups.counts_G[groups.places_S] - 1.0).clamp(min=1.0)


def _scaled(values_S: Tensor, groups: _Groups, config: AdvantageConfig) -> Tensor:
    if config.scale == "none":
        return values_S
    if config.scale == "group_mean":
        return values_S / (groups.means_G[groups.places_S] + config.epsilon)
    if config.scale == "group_std":
        squares_S = (groups.rewards_S - groups.means_G[groups.places_S]).square() * groups.weights_S
        deviations_G = (groups.sums(squares_S) / _freedom(groups.counts_G, config)).sqrt()
        return values_S / (deviations_G[groups.places_S] + config.epsilon)
    spread_S = groups.rewards_S if config.scale == "batch_std" else values_S
    count = groups.weights_S.sum()
    centred_S = (spread_S - (spread_S * groups.weights_S).sum() / count.clamp(min=1.0)) * groups.weights_S
    deviation = (centred_S.square().sum() / _freedom(count, config)).sqrt()
    return (values_S if config.scale == "batch_std" else centred_S) / (deviation + config.epsilon)


def _freedom(counts: Tensor, config: AdvantageConfig) -> Tensor:
    return (counts - 1.0 if config.std == "sample" else counts).clamp(min=1.0)
