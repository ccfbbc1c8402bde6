"""Settings of objectives, as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast, get_args

from windlass.config.annotations import Diagnostic, Doc, Range

__all__ = [
    "AdvantageConfig",
    "CorrectionConfig",
    "DistillationConfig",
    "KLConfig",
    "PolicyConfig",
    "PreferenceConfig",
    "PreferenceLoss",
    "RewardConfig",
    "SupervisedConfig",
]

KLEstimator: TypeAlias = Literal["k1", "k2", "k3", "abs"]
PreferenceKind: TypeAlias = Literal["dpo", "dpo_norm", "ipo", "simpo", "wpo", "nll"]

_KL_DOC = Doc(
    "k1: log p/q; k2: half its square; k3: q/p - 1 + log p/q; abs: its absolute value. "
    "Source: Schulman 2020, 'Approximating KL divergence'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedConfig:
    """Cross-entropy of weighted labels."""

    kind: Annotated[
        Literal["nll", "dft"],
        Doc("nll: cross-entropy; dft: times the token's probability, without gradient. Source: Wu et al. 2025, eq. 9."),
    ] = "nll"
    denominator: Annotated[
        Literal["token", "sequence"],
        Doc("token: mean over the global batch's weighted labels; sequence: mean over sequences of their own means."),
    ] = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionConfig:
    """Weight of each token for tokens sampled by another policy than the proximal one: proximal / behaviour."""

    level: Annotated[
        Literal["token", "sequence", "sequence_mean"],
        Doc("token; sequence: product over the tokens of an answer (TRL); sequence_mean: their geometric mean."),
    ] = "token"
    clamp_min: Annotated[float | None, Range(min=0, max=1), Doc("Smaller weights are raised to this.")] = None
    clamp_max: Annotated[float | None, Range(min=1), Doc("Larger weights are lowered to this.")] = None
    mask_min: Annotated[float | None, Range(min=0, max=1), Doc("Smaller weights become 0.")] = None
    mask_max: Annotated[float | None, Range(min=1), Doc("Larger weights become 0.")] = None
    max_log_ratio: Annotated[
        float, Range(above=0), Doc("Tokens' log ratios are clamped to plus and minus this first (open-instruct: 10).")
    ] = 20.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        bounds = (self.clamp_min, self.clamp_max, self.mask_min, self.mask_max)
        if all(bound is None for bound in bounds):
            yield "level", "this correction has no bound", "invalid-value", "set `clamp_max=2` or `mask_max=2`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationConfig:
    """Reverse KL to a teacher's log-probabilities of the student's tokens."""

    estimator: Annotated[
        Literal["reward", "k2", "k3"],
        Doc(
            "reward: minus the log ratio is each token's advantage, and its gradient is that of the reverse KL; "
            "k2: half the squared log ratio, with the same gradient on the student's own samples; k3: never negative."
        ),
    ] = "reward"
    max_log_ratio: Annotated[float, Range(above=0), Doc("Log ratios are clamped to plus and minus this.")] = 40.0
    correction: Annotated[
        CorrectionConfig | None, Doc("Weights of tokens sampled by an older or different student; null: none.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss:
    """Loss in the list of a preference objective."""

    kind: Annotated[
        PreferenceKind,
        Doc(
            "dpo: summed log-probabilities; dpo_norm: averaged over tokens; ipo: squared distance of the average to "
            "1 / (2 beta); simpo: averages, without a reference; wpo: dpo weighted by the policy's own probability "
            "of the pair; nll: cross-entropy of the chosen answers, averaged over their tokens."
        ),
    ]
    weight: Annotated[float, Range(min=0), Doc("Factor of this loss.")] = 1.0
    beta: Annotated[float, Range(above=0), Doc("Strength of the preference; unused by nll.")] = 0.1
    label_smoothing: Annotated[
        float, Range(min=0, max=0.5), Doc("Probability that a pair is labelled the wrong way; not with ipo and nll.")
    ] = 0.0
    target_margin: Annotated[float, Range(min=0), Doc("Target margin of simpo, divided by beta (gamma / beta).")] = 0.5
    alignment: Annotated[
        Literal["sampled", "none"],
        Doc(
            "Weights of wpo. sampled: tokens' probabilities over the sum of squared ones (paper, section 3.2; TRL); "
            "none: tokens' probabilities, at most 1 for the pair (open-instruct)."
        ),
    ] = "sampled"

    @classmethod
    def from_shorthand(cls, value: str) -> PreferenceLoss:
        """Read the name of a loss; raises ValueError with the names."""
        if value not in get_args(PreferenceKind):
            raise ValueError(f"losses: {', '.join(get_args(PreferenceKind))}")
        return cls(kind=cast("PreferenceKind", value))

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.label_smoothing and self.kind in {"ipo", "nll"}:
            message = f"label_smoothing has no effect on {self.kind}"
            yield "label_smoothing", message, "setting-unused", "remove `label_smoothing`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig:
    """A weighted sum of losses on pairs."""

    losses: Annotated[tuple[PreferenceLoss, ...], Doc("Losses that are added.")] = (PreferenceLoss(kind="dpo"),)

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        kinds = [loss.kind for loss in self.losses]
        if not kinds:
            yield "losses", "`losses` is empty", "invalid-value", "name at least one loss, such as dpo"
        for place, kind in enumerate(kinds):
            if kind in kinds[:place]:
                yield f"losses.{place}", f"`losses` has {kind} twice", "invalid-value", "add up their weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """Bradley-Terry loss of a scalar head, averaged over pairs."""

    centring: Annotated[
        float,
        Range(min=0),
        Doc("Factor of the squared sum of a pair's rewards. Source: Eisenstein et al. 2023, section 3 (TRL: 0.01)."),
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KLConfig:
    """Penalty on the divergence from the reference policy, added to each token's loss."""

    coefficient: Annotated[float, Range(min=0), Doc("Factor of the penalty; 0: no reference policy is needed.")] = 0.0
    estimator: Annotated[KLEstimator, _KL_DOC] = "k3"
    times_ratio: Annotated[
        bool, Doc("Multiply by the ratio to the proximal policy, at its level (TRL does, open-instruct does not).")
    ] = False
    max_log_ratio: Annotated[float, Range(above=0), Doc("Log ratios are clamped to plus and minus this.")] = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Policy gradient on sampled answers: ratio level x clip shape x denominator x KL."""

    ratio: Annotated[
        Literal["token", "sequence", "sequence_mean"],
        Doc("Level of policy / proximal. sequence: product over an answer's tokens; sequence_mean: geometric mean."),
    ] = "token"
    clip: Annotated[
        Literal["ppo", "cispo", "none"],
        Doc(
            "ppo: the smaller of the ratio's gain and the clipped ratio's; cispo: the clipped ratio, without gradient, "
            "times the log-probability; none: the ratio's gain alone."
        ),
    ] = "ppo"
    clip_low: Annotated[
        float | None, Range(min=0, max=1), Doc("The ratio is clipped below 1 - this; null: no lower bound.")
    ] = 0.2
    clip_high: Annotated[
        float | None, Range(above=-1), Doc("The ratio is clipped above 1 + this; null: no upper bound.")
    ] = 0.2
    ratio_max: Annotated[
        float | None, Range(above=1), Doc("Cap of ppo's unclipped ratio, for negative advantages (dual clip).")
    ] = None
    denominator: Annotated[
        Literal["token", "sequence", "constant"],
        Doc(
            "token: mean over the global batch's tokens; sequence: mean over answers of the mean over their tokens; "
            "constant: sum over tokens / (answers * `length`)."
        ),
    ] = "token"
    length: Annotated[int | None, Range(min=1), Doc("Tokens of an answer, for `denominator: constant`.")] = None
    kl: Annotated[KLConfig, Doc("Penalty on the divergence from the reference policy.")] = KLConfig()
    correction: Annotated[
        CorrectionConfig | None, Doc("Weights of tokens sampled by an older or different policy; null: none.")
    ] = None
    entropy_bonus: Annotated[
        float, Range(min=0), Doc("Factor of the entropy, averaged over the global batch's tokens, that is rewarded.")
    ] = 0.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.denominator == "constant" and self.length is None:
            message = "denominator: constant needs `length`"
            yield "denominator", message, "invalid-value", "set `length` to the most tokens of an answer"
        if self.denominator != "constant" and self.length is not None:
            message = f"length has no effect with `denominator: {self.denominator}`"
            yield "length", message, "setting-unused", "set `denominator: constant`, or remove `length`"
        if self.clip != "ppo" and self.ratio_max is not None:
            message = f"ratio_max has no effect with `clip: {self.clip}`"
            yield "ratio_max", message, "setting-unused", "remove `ratio_max`"
        if self.clip == "cispo" and self.ratio != "token":
            message = f"clip: cispo weighs tokens, but `ratio` is {self.ratio}"
            yield "ratio", message, "invalid-value", "set `ratio: token`"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """Advantages of answers from rewards, on whole groups."""

    baseline: Annotated[
        Literal["group", "leave_one_out", "batch", "none"],
        Doc("Subtracted: mean of the group; mean of its other members; mean of the batch; nothing."),
    ] = "group"
    scale: Annotated[
        Literal["none", "group_std", "batch_std", "whiten", "group_mean"],
        Doc(
            "none; group_std, batch_std: divide by the standard deviation of the group's or of all rewards; "
            "whiten: shift and divide to mean 0 and standard deviation 1 over the batch; "
            "group_mean: divide by the group's mean reward."
        ),
    ] = "none"
    std: Annotated[
        Literal["sample", "population"],
        Doc("Standard deviation: sample: of n - 1 (TRL); population: of n (open-instruct)."),
    ] = "sample"
    epsilon: Annotated[float, Range(min=0), Doc("Added to what is divided by.")] = 1e-4
    turns: Annotated[
        Literal["sum", "process"],
        Doc(
            "Rewards of the turns of an episode. sum: their sum is the answer's reward, and all its tokens have one "
            "advantage; process: each turn's reward is normalised among all turns of the group, and the advantage of a "
            "token is the sum over its turn and the later ones. Source: Shao et al. 2024, DeepSeekMath, section 4.1.3."
        ),
    ] = "sum"
