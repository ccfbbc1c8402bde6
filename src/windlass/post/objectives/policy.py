"""Objectives on sampled tokens: policy gradients, and distillation from a teacher, with an off-policy correction.

There are three log-probabilities of a token: *behaviour*, of the policy that sampled it; *proximal*, of the policy at
the start of this batch, to which the ratio is taken; and the current one, which has a gradient.

Legend: B rows, T tokens of a row, S sequences of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from windlass.core.errors import UsageError
from windlass.post.objectives.batch import LossTotals, Scores, TokenRows
from windlass.post.objectives.config import CorrectionConfig, DistillationConfig, KLConfig, PolicyConfig
from windlass.post.objectives.supervised import counted, sequence_means

__all__ = ["DistillationObjective", "PolicyObjective", "at_level", "correction_weights", "kl_estimates"]

MAX_LOG_RATIO = 20.0
"""Log ratios beyond it are clamped before `exp`: e**20 is far outside of every clip range and still finite in sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """Policy gradient on the labels of `weights["policy"]`.

    The stream `proximal` may be missing: the current log-probabilities then take its place, as in the first update
    after sampling. The KL penalty is not multiplied by the correction.

    Components: `policy`, and `entropy` if it is rewarded.
    """

    config: PolicyConfig = PolicyConfig()
    weights: frozenset[str] = frozenset({"policy"})
    wants_entropy: bool = field(init=False, default=False)
    wants_log_squares: bool = field(init=False, default=False)
    wants_values: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Set what the settings ask for.

        Raises:
            UsageError: the denominator is constant and has no length.
        """
        if self.config.denominator == "constant" and self.config.length is None:
            hint = "set `length` to the most tokens of an answer"
            raise UsageError("denominator: constant needs `length`", hint=hint, code="invalid-value")
        object.__setattr__(self, "wants_entropy", self.config.entropy_bonus > 0.0)

    @property
    def components(self) -> tuple[str, ...]:
        """Return the names of the loss components."""
        return ("policy", "entropy") if self.wants_entropy else ("policy",)

    @property
    def needs(self) -> frozenset[str]:
        """Return the streams that the settings need."""
        reference = {"reference"} if self.config.kl.coefficient else set()
        behaviour = {"behaviour"} if self.config.correction is not None else set()
        return frozenset({"advantage", *reference, *behaviour})

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the tokens or answers that losses are averaged over."""
        tokens = float(rows.weights["policy"].double().sum())
        policy = tokens if self.config.denominator == "token" else float(rows.num_sequences)
        return (policy, tokens) if self.wants_entropy else (policy,)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the policy's loss with its KL penalty, the entropy's, and means over tokens as metrics."""
        assert scores.logp_BT is not None
        config, weight_BT = self.config, rows.weights["policy"].double()
        logp_BT = counted(scores.logp_BT, weight_BT)
        advantage_BT = counted(rows.streams["advantage"], weight_BT)
        proximal = rows.streams.get("proximal")
        proximal_BT = logp_BT.detach() if proximal is None else counted(proximal, weight_BT)
        ratio_BT = at_level(rows, logp_BT - proximal_BT, weight_BT, config.ratio).clamp(max=MAX_LOG_RATIO).exp()
        loss_BT = _clipped(config, ratio_BT, advantage_BT, logp_BT)
        found = {"ratio": ratio_BT, **_clip_shares(config, ratio_BT, advantage_BT)}
        if config.correction is not None:
            behaviour_BT = counted(rows.streams["behaviour"], weight_BT)
            kept_BT = correction_weights(config.correction, rows, proximal_BT - behaviour_BT, weight_BT)
            loss_BT = loss_BT * kept_BT
            found |= {"correction": kept_BT, "correction_dropped": kept_BT == 0.0}
        if config.kl.coefficient:
            kl_BT = kl_estimates(config.kl, logp_BT - counted(rows.streams["reference"], weight_BT))
            kl_BT = kl_BT * ratio_BT if config.kl.times_ratio else kl_BT
            loss_BT = loss_BT + config.kl.coefficient * kl_BT
            found["kl"] = kl_BT
        losses = {"policy": _reduced(config, rows, loss_BT, weight_BT)}
        if scores.entropy_BT is not None:
            found["entropy"] = counted(scores.entropy_BT, weight_BT)
            if self.wants_entropy:
                losses["entropy"] = -config.entropy_bonus * (found["entropy"] * weight_BT).sum()
        metrics = {name: (value_BT.detach() * weight_BT).sum() for name, value_BT in found.items()}
        return LossTotals(losses=losses, metrics=metrics, weights=dict.fromkeys(metrics, weight_BT.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationObjective:
    """Reverse KL from a teacher on the student's own samples, over the labels of `weights["distillation"]`.

    A correction multiplies the loss of tokens that an older student sampled, without a gradient of its own.
    Source: Agarwal et al. 2024, "On-policy distillation of language models", section 3.
    """

    config: DistillationConfig = DistillationConfig()
    components: tuple[str, ...] = ("distillation",)
    weights: frozenset[str] = frozenset({"distillation"})
    wants_entropy: bool = False
    wants_log_squares: bool = False
    wants_values: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """Return the streams that the settings need."""
        return frozenset({"teacher"} if self.config.correction is None else {"teacher", "behaviour"})

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the sum of weights."""
        return (float(rows.weights["distillation"].double().sum()),)

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the weighted sum of the estimator, and of the log ratio student / teacher as `reverse_kl`."""
        assert scores.logp_BT is not None
        config, weight_BT = self.config, rows.weights["distillation"].double()
        logp_BT = counted(scores.logp_BT, weight_BT)
        bound = config.max_log_ratio
        ratio_BT = (logp_BT - counted(rows.streams["teacher"], weight_BT)).clamp(-bound, bound)
        if config.estimator == "reward":
            loss_BT = ratio_BT.detach() * logp_BT
        elif config.estimator == "k2":
            loss_BT = ratio_BT.square() / 2.0
        else:
            loss_BT = torch.expm1(-ratio_BT) + ratio_BT
        found = {"reverse_kl": ratio_BT}
        if config.correction is not None:
            log_BT = logp_BT - counted(rows.streams["behaviour"], weight_BT)
            kept_BT = correction_weights(config.correction, rows, log_BT, weight_BT)
            loss_BT = loss_BT * kept_BT
            found |= {"correction": kept_BT, "correction_dropped": kept_BT == 0.0}
        metrics = {name: (value_BT.detach() * weight_BT).sum() for name, value_BT in found.items()}
        return LossTotals(
            losses={"distillation": (loss_BT * weight_BT).sum()},
            metrics=metrics,
            weights=dict.fromkeys(metrics, weight_BT.sum()),
        )


def at_level(rows: TokenRows, log_ratio_BT: Tensor, weight_BT: Tensor, level: str) -> Tensor:
    """Return log ratios of tokens, or at each token that of its sequence: their sum or mean over counted labels.

    Sources: sequence_mean: Zheng et al. 2025, "Group sequence policy optimization", eq. 7; sequence: Ahmadian et al.
    2024, "Back to basics", section 3.3.
    """
    if level == "token":
        return log_ratio_BT
    counts_BT = (weight_BT != 0.0).double()
    if level == "sequence":
        found_S = rows.sequence_sums(log_ratio_BT * counts_BT)
    else:
        found_S = sequence_means(rows, log_ratio_BT, counts_BT)
    return torch.where(counts_BT > 0.0, rows.at_labels(found_S), 0.0)


def correction_weights(config: CorrectionConfig, rows: TokenRows, log_ratio_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return each token's weight proximal / behaviour after clamp and mask, without gradient.

    Sources: clamp: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; mask:
    Ling Team 2025, "Every step evolves", section 3 (IcePop).
    """
    bound = config.max_log_ratio
    log_BT = at_level(rows, log_ratio_BT.detach().clamp(-bound, bound), weight_BT, config.level)
    ratio_BT = log_BT.clamp(max=max(bound, MAX_LOG_RATIO)).exp()
    kept_BT = torch.ones_like(ratio_BT, dtype=torch.bool)
    if config.mask_min is not None:
        kept_BT &= ratio_BT >= config.mask_min
    if config.mask_max is not None:
        kept_BT &= ratio_BT <= config.mask_max
    if config.clamp_min is not None or config.clamp_max is not None:
        ratio_BT = ratio_BT.clamp(config.clamp_min, config.clamp_max)
    return torch.where(kept_BT, ratio_BT, 0.0)


def kl_estimates(config: KLConfig, log_ratio_BT: Tensor) -> Tensor:
    """Return estimates of KL(policy, reference) from log(policy / reference) of the policy's samples."""
    log_ratio_BT = log_ratio_BT.clamp(-config.max_log_ratio, config.max_log_ratio)
    if config.estimator == "k1":
        return log_ratio_BT
    if config.estimator == "k2":
        return log_ratio_BT.square() / 2.0
    if config.estimator == "abs":
        return log_ratio_BT.abs()
    return torch.expm1(-log_ratio_BT) + log_ratio_BT


def _clipped(config: PolicyConfig, ratio_BT: Tensor, advantage_BT: Tensor, logp_BT: Tensor) -> Tensor:
    """Return the loss of each token.

    Sources: ppo: Schulman et al. 2017, eq. 7, with separate bounds as in Yu et al. 2025, "DAPO", eq. 10; ratio_max: Ye
    et al. 2020, "Mastering complex control", eq. 4; cispo: MiniMax 2025, "MiniMax-M1", eq. 4.
    """
    if config.clip == "none":
        return -ratio_BT * advantage_BT
    clipped_BT = _clamped(config, ratio_BT)
    if config.clip == "cispo":
        return -clipped_BT.detach() * advantage_BT * logp_BT
    if config.ratio_max is not None:
        ratio_BT = ratio_BT.clamp(max=config.ratio_max)
    return -torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)


def _clamped(config: PolicyConfig, ratio_BT: Tensor) -> Tensor:
    low = None if config.clip_low is None else 1.0 - config.clip_low
    high = None if config.clip_high is None else 1.0 + config.clip_high
    return ratio_BT if low is None and high is None else ratio_BT.clamp(low, high)


def _clip_shares(config: PolicyConfig, ratio_BT: Tensor, advantage_BT: Tensor) -> dict[str, Tensor]:
    """Return where the bounds take effect, by bound."""
    found = {}
    if config.clip != "none" and config.clip_low is not None:
        is_low_BT = ratio_BT < 1.0 - config.clip_low
        found["clip_low"] = is_low_BT & (advantage_BT < 0.0) if config.clip == "ppo" else is_low_BT
    if config.clip != "none" and config.clip_high is not None:
        is_high_BT = ratio_BT > 1.0 + config.clip_high
        found["clip_high"] = is_high_BT & (advantage_BT > 0.0) if config.clip == "ppo" else is_high_BT
    return found


def _reduced(config: PolicyConfig, rows: TokenRows, loss_BT: Tensor, weight_BT: Tensor) -> Tensor:
    if config.denominator == "sequence":
        return sequence_means(rows, loss_BT, weight_BT).sum()
    total = (loss_BT * weight_BT).sum()
    return total / config.length if config.denominator == "constant" and config.length else total
