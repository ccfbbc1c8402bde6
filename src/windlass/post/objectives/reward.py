"""Objective of reward models: Bradley-Terry on the outputs of a scalar head.

Legend: B rows, T tokens of a row, S sequences of a microbatch, P pairs of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional as F

from windlass.post.objectives.batch import LossTotals, Scores, TokenRows
from windlass.post.objectives.config import RewardConfig
from windlass.post.objectives.preference import pairs_of
from windlass.post.objectives.supervised import counted, sequence_means

__all__ = ["RewardObjective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardObjective:
    """Negative log-likelihood that the chosen answer beats the rejected one by its margin.

    A sequence's reward is the mean of `values_BT` weighted by `weights["reward"]`: 1 at its last position for a head on
    the last token, 1 at every position of the answer for a pooled head.

    Source: Ouyang et al. 2022, eq. 1; margin: Touvron et al. 2023, "Llama 2", eq. 2.
    """

    config: RewardConfig = RewardConfig()
    components: tuple[str, ...] = ("reward",)
    weights: frozenset[str] = frozenset({"reward"})
    needs: frozenset[str] = frozenset()
    wants_entropy: bool = False
    wants_log_squares: bool = False
    wants_values: bool = True

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the number of pairs."""
        return (float(len(pairs_of(rows))),)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the sum of losses over pairs; accuracy, margin and rewards."""
        assert scores.values_BT is not None
        weight_BT = rows.weights["reward"]
        rewards_S = sequence_means(rows, counted(scores.values_BT, weight_BT), weight_BT)
        rewards_P2 = rewards_S[pairs_of(rows)]
        gaps_P = rewards_P2[:, 0] - rewards_P2[:, 1]
        loss_P = -F.logsigmoid(gaps_P if rows.margins_P is None else gaps_P - rows.margins_P.double())
        if self.config.centring:
            loss_P = loss_P + self.config.centring * rewards_P2.sum(dim=-1).square()
        metrics = {
            "accuracy": (gaps_P > 0).double().sum(),
            "margin": gaps_P.detach().sum(),
            "reward_chosen": rewards_P2[:, 0].detach().sum(),
            "reward_rejected": rewards_P2[:, 1].detach().sum(),
        }
        return LossTotals(losses={"reward": loss_P.sum()}, metrics=metrics)
