"""Table of the recipes that are shipped."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHIPPED", "Shipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """Entry for a shipped recipe.

    Attributes:
        module: module to import; those of post-training are in `windlass.post`, which stands above this package.
        function: name in that module.
        summary: description in one line.
    """

    module: str
    function: str
    summary: str


SHIPPED: dict[str, Shipped] = {
    "tiny": Shipped(
        module="windlass.train.recipes.tiny",
        function="tiny",
        summary="1.3M parameters on a text file: minutes on two cores.",
    ),
    "llama-271m": Shipped(
        module="windlass.train.recipes.llama", function="llama_271m", summary="A small Llama: the tutorial's first run."
    ),
    "olmo2-1b": Shipped(
        module="windlass.train.recipes.olmo", function="olmo2_1b", summary="OLMo 2 1B: pre-training, 4T tokens."
    ),
    "olmo2-7b": Shipped(
        module="windlass.train.recipes.olmo", function="olmo2_7b", summary="OLMo 2 7B: pre-training, 4T tokens."
    ),
    "olmo2-7b-midtraining": Shipped(
        module="windlass.train.recipes.olmo_stages",
        function="olmo2_7b_midtraining",
        summary="OLMo 2 7B: mid-training, 50B tokens.",
    ),
    "olmo2-32b": Shipped(
        module="windlass.train.recipes.olmo", function="olmo2_32b", summary="OLMo 2 32B: pre-training, 6.5T tokens."
    ),
    "olmo3-7b": Shipped(
        module="windlass.train.recipes.olmo",
        function="olmo3_7b",
        summary="OLMo 3 7B: pre-training, part one, 5T tokens.",
    ),
    "olmo3-7b-midtraining": Shipped(
        module="windlass.train.recipes.olmo_stages",
        function="olmo3_7b_midtraining",
        summary="OLMo 3 7B: mid-training, 100B tokens.",
    ),
    "olmo3-7b-long-context": Shipped(
        module="windlass.train.recipes.olmo_stages",
        function="olmo3_7b_long_context",
        summary="OLMo 3 7B: long context (65,536), 50B tokens.",
    ),
    "olmo3-32b": Shipped(
        module="windlass.train.recipes.olmo", function="olmo3_32b", summary="OLMo 3 32B: pre-training, one pass (5.5T)."
    ),
    "olmo3-32b-midtraining": Shipped(
        module="windlass.train.recipes.olmo_stages",
        function="olmo3_32b_midtraining",
        summary="OLMo 3 32B: mid-training, 100B tokens.",
    ),
    "olmo3-32b-long-context": Shipped(
        module="windlass.train.recipes.olmo_stages",
        function="olmo3_32b_long_context",
        summary="OLMo 3 32B: long context (65,536), 100B tokens.",
    ),
    "qwen3-0.6b": Shipped(
        module="windlass.train.recipes.qwen", function="qwen3_0_6b", summary="Qwen 3 0.6B: fine-tuning on documents."
    ),
    "sft": Shipped(module="windlass.post.recipes", function="sft", summary="Supervised fine-tuning on chats."),
    "reward": Shipped(module="windlass.post.recipes", function="reward", summary="A reward model from preferences."),
    "dpo": Shipped(module="windlass.post.recipes", function="dpo", summary="Direct preference optimisation."),
    "distill": Shipped(module="windlass.post.recipes", function="distill", summary="On-policy distillation."),
    "grpo": Shipped(module="windlass.post.recipes", function="grpo", summary="Reinforcement learning with verifiers."),
}
"""Recipes by command-line name; listing them imports nothing."""
