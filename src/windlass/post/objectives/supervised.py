"""Objectives on given tokens: cross-entropy, and distillation from a teacher's log-probabilities.

Legend: B rows, T tokens of a row, S sequences of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.post.objectives.batch import LossTotals, Scores, TokenRows
from windlass.post.objectives.config import DistillationConfig, SupervisedConfig

__all__ = ["DistillationObjective", "SupervisedObjective", "counted", "sequence_means"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationObjective:
    """Reverse KL from a teacher on the student's own samples, over the labels of `weights["distillation"]`.

    Source: Agarwal et al. 2024, "On-policy distillation of language models", section 3.
    """

    config: DistillationConfig = DistillationConfig()
    components: tuple[str, ...] = ("distillation",)
    weights: frozenset[str] = frozenset({"distillation"})
    needs: frozenset[str] = frozenset({"teacher"})
    wants_entropy: bool = False
    wants_log_squares: bool = False
    wants_values: bool = False

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the sum of weights."""
        return (float(rows.weights["distillation"].double().sum()),)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the weighted sum of the estimator, and of the log ratio student / teacher as `reverse_kl`."""
        assert scores.logp_BT is not None
        weight_BT = rows.weights["distillation"]
        logp_BT = counted(scores.logp_BT, weight_BT)
        bound = self.config.max_log_ratio
        ratio_BT = (logp_BT - counted(rows.streams["teacher"], weight_BT)).clamp(-bound, bound)
        if self.config.estimator == "reward":
            loss_BT = ratio_BT.detach() * logp_BT
        elif self.config.estimator == "k2":
            loss_BT = ratio_BT.square() / 2.0
        else:
            loss_BT = torch.expm1(-ratio_BT) + ratio_BT
        found = (ratio_BT * weight_BT).sum().detach()
        return LossTotals(
            losses={"distillation": (loss_BT * weight_BT).sum()},
            metrics={"reverse_kl": found},
            weights={"reverse_kl": weight_BT.double().sum()},
        )


def counted(values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return float64 values where the weight is not 0, else 0; what else stands there, NaN included, has no effect."""
    return torch.where(weight_BT != 0.0, values_BT.double(), 0.0)


def sequence_means(rows: TokenRows, values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return the weighted mean of values over each sequence's labels, (S,); 0 for a sequence of weight 0."""
    totals_S = rows.sequence_sums(weight_BT)
    return rows.sequence_sums(values_BT * weight_BT) / torch.where(totals_S == 0.0, 1.0, totals_S)
