"""Objective on given tokens: cross-entropy.

Legend: B rows, T tokens of a row, S sequences of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.post.objectives.batch import LossTotals, Scores, TokenRows
from windlass.post.objectives.config import SupervisedConfig

__all__ = ["SupervisedObjective", "counted", "sequence_means"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedObjective:
    """Cross-entropy of labels, each with its weight in `weights["nll"]`."""

    config: SupervisedConfig = SupervisedConfig()
    components: tuple[str, ...] = ("nll",)
    weights: frozenset[str] = frozenset({"nll"})
    needs: frozenset[str] = frozenset()
    wants_entropy: bool = False
    wants_log_squares: bool = False
    wants_values: bool = False

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the sum of weights, or the number of sequences."""
        if self.config.denominator == "sequence":
            return (float(rows.num_sequences),)
        return (float(rows.weights["nll"].double().sum()),)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the weighted sum of cross-entropies."""
        assert scores.logp_BT is not None
        weight_BT = rows.weights["nll"]
        logp_BT = counted(scores.logp_BT, weight_BT)
        loss_BT = -logp_BT if self.config.kind == "nll" else -logp_BT * logp_BT.detach().exp()
        if self.config.denominator == "sequence":
            return LossTotals(losses={"nll": sequence_means(rows, loss_BT, weight_BT).sum()})
        return LossTotals(losses={"nll": (loss_BT * weight_BT).sum()})


def counted(values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return float64 values where the weight is not 0, else 0; what else stands there, NaN included, has no effect."""
    return torch.where(weight_BT != 0.0, values_BT.double(), 0.0)


def sequence_means(rows: TokenRows, values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return the weighted mean of values over each sequence's labels, (S,); 0 for a sequence of weight 0."""
    totals_S = rows.sequence_sums(weight_BT)
    return rows.sequence_sums(values_BT * weight_BT) / torch.where(totals_S == 0.0, 1.0, totals_S)
