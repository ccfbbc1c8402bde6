"""Objectives on pairs of a chosen and a rejected answer, as a weighted sum of losses.

Legend: B rows, T tokens of a row, S sequences of a microbatch, P pairs of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from windlass.post.objectives.batch import LossTotals, Scores, TokenRows
from windlass.post.objectives.config import PreferenceConfig, PreferenceLoss
from windlass.post.objectives.supervised import counted, sequence_means

__all__ = ["PreferenceObjective", "pairs_of"]

_WITHOUT_REFERENCE = {"simpo", "nll"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Sums over the counted labels of each pair's answers, in the column order chosen, rejected."""

    logp_P2: Tensor
    reference_P2: Tensor
    lengths_P2: Tensor

    @property
    def log_ratios(self) -> Tensor:
        return self.logp_P2 - self.reference_P2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceObjective:
    """Losses on `pairs_P2`; `weights["preference"]` is 1 at the labels of answers.

    The component of a loss is named after its kind. Losses of pairs are averaged over pairs, `nll` over the labels of
    chosen answers.
    """

    config: PreferenceConfig = PreferenceConfig()
    wants_entropy: bool = False
    wants_values: bool = False

    @property
    def components(self) -> tuple[str, ...]:
        """Return the kinds of the losses."""
        return tuple(loss.kind for loss in self.config.losses)

    @property
    def weights(self) -> frozenset[str]:
        """Return the name of the weights that are read."""
        return frozenset({"preference"})

    @property
    def needs(self) -> frozenset[str]:
        """Return `reference` if any loss compares with the reference policy."""
        return frozenset({"reference"}) if set(self.components) - _WITHOUT_REFERENCE else frozenset()

    @property
    def wants_log_squares(self) -> bool:
        """Return whether `wpo` aligns its weights."""
        return any(loss.kind == "wpo" and loss.alignment == "sampled" for loss in self.config.losses)

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the number of pairs for each loss, but for `nll` the number of chosen labels."""
        pairs_P2 = pairs_of(rows)
        lengths_S = rows.sequence_sums(rows.weights["preference"])
        chosen = float(lengths_S[pairs_P2[:, 0]].sum())
        return tuple(chosen if loss.kind == "nll" else float(len(pairs_P2)) for loss in self.config.losses)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the weighted sum of each loss, and the implicit rewards of the first loss of pairs."""
        assert scores.logp_BT is not None
        pairs_P2, weight_BT = pairs_of(rows), rows.weights["preference"]
        logp_S = rows.sequence_sums(counted(scores.logp_BT, weight_BT) * weight_BT)
        reference_S = torch.zeros_like(logp_S)
        if self.needs:
            reference_S = rows.sequence_sums(counted(rows.streams["reference"], weight_BT) * weight_BT)
        lengths_S = rows.sequence_sums(weight_BT).clamp(min=1.0)
        pairs = _Pairs(logp_P2=logp_S[pairs_P2], reference_P2=reference_S[pairs_P2], lengths_P2=lengths_S[pairs_P2])
        losses: dict[str, Tensor] = {}
        for loss in self.config.losses:
            found_P = _loss(loss, pairs)
            if loss.kind == "wpo":
                found_P = found_P * _wpo_weights(loss, rows, scores, pairs_P2)
            losses[loss.kind] = loss.weight * found_P.sum()
        return self._with_metrics(losses, pairs)

    def _with_metrics(self, losses: dict[str, Tensor], pairs: _Pairs) -> LossTotals:
        first = next((loss for loss in self.config.losses if loss.kind != "nll"), None)
        if first is None:
            return LossTotals(losses=losses)
        rewards_P2 = (first.beta * _scores(first, pairs)).detach()
        margins_P = rewards_P2[:, 0] - rewards_P2[:, 1]
        metrics = {
            "reward_chosen": rewards_P2[:, 0].sum(),
            "reward_rejected": rewards_P2[:, 1].sum(),
            "margin": margins_P.sum(),
            "accuracy": (margins_P > 0).double().sum(),
        }
        return LossTotals(
            losses=losses, metrics=metrics, weights={name: margins_P.new_tensor(len(margins_P)) for name in metrics}
        )


def pairs_of(rows: TokenRows) -> Tensor:
    """Return int64 (chosen, rejected) sequence indices, (P, 2); empty if the microbatch has no pairs."""
    if rows.pairs_P2 is None:
        return torch.zeros((0, 2), dtype=torch.int64, device=rows.labels_BT.device)
    return rows.pairs_P2.long()


def _scores(loss: PreferenceLoss, pairs: _Pairs) -> Tensor:
    """Return implicit rewards divided by beta."""
    if loss.kind == "simpo":
        return pairs.logp_P2 / pairs.lengths_P2
    if loss.kind in {"dpo_norm", "ipo"}:
        return pairs.log_ratios / pairs.lengths_P2
    return pairs.log_ratios


def _loss(loss: PreferenceLoss, pairs: _Pairs) -> Tensor:
    """Return a loss per pair.

    Sources: dpo: Rafailov et al. 2023, eq. 7; label smoothing: Mitchell 2023, "A note on DPO with noisy preferences",
    eq. 3; dpo_norm: Lambert et al. 2024, "Tulu 3", eq. 6; ipo: Azar et al. 2023, eq. 17, on averages over tokens as its
    authors computed it; simpo: Meng et al. 2024, eq. 6; wpo: Zhou et al. 2024, eq. 2.
    """
    if loss.kind == "nll":
        return -pairs.logp_P2[:, 0]
    scores_P2 = _scores(loss, pairs)
    margins_P = scores_P2[:, 0] - scores_P2[:, 1]
    if loss.kind == "ipo":
        return (margins_P - 1.0 / (2.0 * loss.beta)).square()
    if loss.kind == "simpo":
        margins_P = margins_P - loss.target_margin
    loss_P = -F.logsigmoid(loss.beta * margins_P)
    if not loss.label_smoothing:
        return loss_P
    flipped_P = -F.logsigmoid(-loss.beta * margins_P)
    return (1.0 - loss.label_smoothing) * loss_P + loss.label_smoothing * flipped_P


def _wpo_weights(loss: PreferenceLoss, rows: TokenRows, scores: Scores, pairs_P2: Tensor) -> Tensor:
    """Return the policy's mean probability (geometric) of the tokens of both answers, without gradient."""
    assert scores.logp_BT is not None
    weight_BT = rows.weights["preference"]
    logp_BT = counted(scores.logp_BT.detach(), weight_BT)
    if loss.alignment == "none":
        return sequence_means(rows, logp_BT, weight_BT)[pairs_P2].sum(dim=-1).exp().clamp(max=1.0)
    assert scores.log_squares_BT is not None
    aligned_BT = logp_BT - counted(scores.log_squares_BT, weight_BT)
    return sequence_means(rows, aligned_BT, weight_BT)[pairs_P2].sum(dim=-1).exp()
