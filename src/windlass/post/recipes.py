"""Recipes of post-training by name: `windlass train sft ...`."""

from __future__ import annotations

from windlass.post.control.config import RewardsConfig, RolloutConfig, VerifierConfig
from windlass.post.data.config import MixSource, MixtureConfig
from windlass.post.objectives.config import PreferenceConfig, PreferenceLoss
from windlass.post.objectives.presets import preset
from windlass.post.recipe import (
    DistillationRecipe,
    PolicyRecipe,
    PreferenceRecipe,
    RewardRecipe,
    SftRecipe,
    StartingModel,
)
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.duration import Duration
from windlass.train.optim.config import AdamWConfig
from windlass.train.optim.schedule_config import LinearConfig

__all__ = ["distill", "dpo", "grpo", "reward", "sft"]


def sft() -> SftRecipe:
    """Return supervised fine-tuning of `model.from=PATH` on the chats in `data.mix.0.source=FILE`.

    Two passes in batches of 128 chats, AdamW at 2e-5 with a linear decay to zero. Tulu 3's 8B model was trained so at 5e-6
    after a warm-up of 3 % of the steps; `schedule.warmup=100steps` adds one. Source: Lambert et al. 2024, "Tulu 3", table 12.
    """
    return SftRecipe(
        name="sft",
        model=StartingModel(path="checkpoints/base"),
        data=MixtureConfig(
            mix=(MixSource(source="chats.jsonl"),), batch_rows=128, max_length=4096, microbatch_tokens=16384
        ),
        duration=Duration.epochs(2),
        optim=AdamWConfig(lr=2e-5, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=LinearConfig(final=0.0),
        checkpoint=CheckpointerConfig(every=Duration.epochs(1)),
    )


def reward() -> RewardRecipe:
    """Return a reward model from `model.from=PATH`, on the pairs in `data.mix.0.source=FILE`.

    One pass in batches of 128 pairs, AdamW at 3e-6 with a linear decay. Source: Lambert et al. 2024, "Tulu 3", section
    on the reward model of PPO.
    """
    return RewardRecipe(
        name="reward",
        model=StartingModel(path="checkpoints/base"),
        data=_pairs(),
        duration=Duration.epochs(1),
        optim=AdamWConfig(lr=3e-6, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=LinearConfig(final=0.0),
        checkpoint=CheckpointerConfig(every=Duration.epochs(1)),
    )


def dpo() -> PreferenceRecipe:
    """Return length-normalised DPO of `model.from=PATH`, on the pairs in `data.mix.0.source=FILE`.

    One pass in batches of 128 pairs, beta 5, AdamW at 5e-7 with a linear decay: Tulu 3's 8B model. Source: Lambert et
    al. 2024, "Tulu 3", table 20.
    """
    return PreferenceRecipe(
        name="dpo",
        model=StartingModel(path="checkpoints/base"),
        data=_pairs(),
        duration=Duration.epochs(1),
        objective=PreferenceConfig(losses=(PreferenceLoss(kind="dpo_norm", beta=5.0),)),
        optim=AdamWConfig(lr=5e-7, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=LinearConfig(final=0.0),
        checkpoint=CheckpointerConfig(every=Duration.epochs(1)),
    )


def grpo() -> PolicyRecipe:
    """Return GRPO of `model.from=PATH` on the prompts in `data.mix.0.source=FILE`, scored by `reward.verifiers`.

    Each step samples 8 answers to each of 32 prompts and takes one step on them: the loss of DAPO as open-instruct
    computes it, with advantages centred in their group. Source: open-instruct, `grpo_fast.py`, as read on 2026-08-20.
    """
    return PolicyRecipe(
        name="grpo",
        model=StartingModel(path="checkpoints/base"),
        data=MixtureConfig(
            mix=(MixSource(source="prompts.jsonl"),), batch_rows=32, max_length=1024, microbatch_tokens=16384
        ),
        reward=RewardsConfig(verifiers=(VerifierConfig(name="gsm8k"),)),
        advantage=preset("dapo").advantage,
        objective=preset("dapo").policy,
        duration=Duration.steps(200),
        optim=AdamWConfig(lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=LinearConfig(final=0.0),
        checkpoint=CheckpointerConfig(every=Duration.steps(50)),
    )


def distill() -> DistillationRecipe:
    """Return on-policy distillation of `teacher.from=PATH` into `model.from=PATH`, on prompts.

    Each step samples an answer to each of 128 prompts; the gradient is that of the reverse KL to the teacher at each of
    their tokens. Source: Agarwal et al. 2024, "On-policy distillation of language models", section 3; the sizes are ours.
    """
    return DistillationRecipe(
        name="distill",
        model=StartingModel(path="checkpoints/base"),
        teacher=StartingModel(path="checkpoints/teacher"),
        data=MixtureConfig(
            mix=(MixSource(source="prompts.jsonl"),), batch_rows=128, max_length=1024, microbatch_tokens=16384
        ),
        rollout=RolloutConfig(group_size=1),
        duration=Duration.steps(200),
        optim=AdamWConfig(lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0),
        schedule=LinearConfig(final=0.0),
        checkpoint=CheckpointerConfig(every=Duration.steps(50)),
    )


def _pairs() -> MixtureConfig:
    return MixtureConfig(
        mix=(MixSource(source="pairs.jsonl"),), batch_rows=128, max_length=2048, microbatch_tokens=16384
    )
