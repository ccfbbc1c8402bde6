"""Presets: an algorithm's name in the field, and its settings of objective and advantages.

Where open-instruct and TRL mean different things by a name, both are here: the plain name follows the paper or
open-instruct, `NAME@trl` follows TRL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from windlass.core.errors import UsageError
from windlass.post.objectives.config import AdvantageConfig, PolicyConfig

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of a named algorithm.

    Attributes:
        policy: the objective, without a KL penalty.
        advantage: the advantages.
        source: paper, or the software whose meaning this is.
        note: what differs from a namesake, or must be set by the user; empty if nothing does.
    """

    policy: PolicyConfig
    advantage: AdvantageConfig
    source: str
    note: str = ""


_GROUP_STD = AdvantageConfig(baseline="group", scale="group_std")
_CENTRED = AdvantageConfig(baseline="group", scale="none")

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "grpo": Preset(
            policy=PolicyConfig(denominator="sequence"),
            advantage=_GROUP_STD,
            source="Shao et al. 2024, DeepSeekMath, eq. 3; TRL loss_type=grpo",
            note="the paper adds a KL penalty: kl.coefficient=0.04",
        ),
        "dr_grpo": Preset(
            policy=PolicyConfig(denominator="constant"),
            advantage=_CENTRED,
            source="Liu et al. 2025, Understanding R1-Zero-like training, section 3.1; TRL loss_type=dr_grpo",
            note="set length to the most tokens of an answer",
        ),
        "dapo": Preset(
            policy=PolicyConfig(clip_high=0.272),
            advantage=_CENTRED,
            source="open-instruct loss_fn=dapo",
            note="the paper clips at 0.28 and divides advantages by the group's standard deviation: see dapo@paper",
        ),
        "dapo@paper": Preset(
            policy=PolicyConfig(clip_high=0.28),
            advantage=_GROUP_STD,
            source="Yu et al. 2025, DAPO, eq. 8 and section 4.1",
        ),
        "dapo@trl": Preset(
            policy=PolicyConfig(),
            advantage=_GROUP_STD,
            source="TRL loss_type=dapo, its default",
            note="clips at 0.2 on both sides; TRL multiplies a KL penalty by the ratio: kl.times_ratio=true",
        ),
        "cispo": Preset(
            policy=PolicyConfig(clip="cispo", clip_low=None, clip_high=0.272),
            advantage=_CENTRED,
            source="MiniMax 2025, MiniMax-M1, eq. 4; open-instruct loss_fn=cispo",
            note="the ratio is clipped above 1 + clip_high",
        ),
        "cispo@trl": Preset(
            policy=PolicyConfig(clip="cispo", clip_low=None, clip_high=4.0),
            advantage=_GROUP_STD,
            source="TRL loss_type=cispo with epsilon_high=5, as in Khatri et al. 2025, ScaleRL",
            note="TRL's epsilon_high is the bound itself, so 5 is clip_high=4; its default of 0.2 is clip_high=-0.8",
        ),
        "gspo": Preset(
            policy=PolicyConfig(ratio="sequence_mean", clip_low=3e-4, clip_high=4e-4, denominator="sequence"),
            advantage=_GROUP_STD,
            source="Zheng et al. 2025, Group sequence policy optimization, section 4; TRL: level=sequence",
        ),
        "rloo": Preset(
            policy=PolicyConfig(ratio="sequence", denominator="sequence"),
            advantage=AdvantageConfig(baseline="leave_one_out"),
            source="Ahmadian et al. 2024, Back to basics, section 3.3; TRL RLOOTrainer",
            note="the KL penalty is part of the reward: the answer's sum of log(proximal / reference), scaled",
        ),
        "reinforce++": Preset(
            policy=PolicyConfig(),
            advantage=AdvantageConfig(baseline="none", scale="whiten", epsilon=1e-8),
            source="Hu et al. 2025, REINFORCE++, eq. 8",
            note="the KL penalty is part of the reward",
        ),
        "reinforce++-baseline": Preset(
            policy=PolicyConfig(),
            advantage=AdvantageConfig(baseline="group", scale="whiten", epsilon=1e-8),
            source="Hu et al. 2025, REINFORCE++, section 3.3",
            note="the paper adds a KL penalty: kl.estimator=k2",
        ),
        "maxrl": Preset(
            policy=PolicyConfig(clip="none", clip_low=None, clip_high=None),
            advantage=AdvantageConfig(baseline="group", scale="group_mean", epsilon=1e-6),
            source="Tajwar et al. 2026, Maximum likelihood reinforcement learning, algorithm 1",
            note="rewards must be 0 or positive",
        ),
    }
)


def preset(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        UsageError: there is none.
    """
    found = PRESETS.get(name)
    if found is None:
        raise UsageError(f"unknown preset `{name}`", hint=f"choose one of {', '.join(PRESETS)}", code="invalid-value")
    return found
