"""Activation checkpointing: what the forward pass keeps and the backward pass recomputes.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; selective: Korthikanti et al. 2022,
"Reducing activation recomputation", section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from windlass.train.parallel.config import BudgetCheckpointing, FullCheckpointing, SelectiveCheckpointing

if TYPE_CHECKING:
    from windlass.train.parallel.config import ParallelConfig

__all__ = ["checkpoint_activations"]

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
_PRODUCTS = ("mm", "addmm", "bmm", "_scaled_mm", "_grouped_mm")


def checkpoint_activations(blocks: Sequence[nn.Module], config: ParallelConfig, *, is_random: bool) -> None:
    """Wrap the forward method of each block in place; names and hooks do not change.

    Args:
        is_random: whether blocks use random numbers, which are then reproduced, at the cost of keeping the
            generators' state for each block.
    """
    match config.checkpointing:
        case FullCheckpointing(every=every):
            for block in blocks[::every]:
                _wrap(block, None, is_random=is_random)
        case SelectiveCheckpointing(keep_every=keep_every):
            for block in blocks:
                # each forward pass counts its products from 0
                _wrap(block, lambda: create_selective_checkpoint_contexts(_Policy(keep_every)), is_random=is_random)
        case BudgetCheckpointing(share=share):
            import torch._functorch.config as functorch  # lazy: only the compiler reads it

            functorch.activation_memory_budget = share
        case None:
            pass


def _wrap(block: nn.Module, contexts: Callable[[], Any] | None, *, is_random: bool) -> None:
    forward = block.forward
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": is_random}
    if contexts is not None:
        settings["context_fn"] = contexts

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **settings, **kwargs)

    block.forward = recomputed


class _Policy:
    """Policy that keeps attention and every N-th matrix product, and recomputes the rest."""

    def __init__(self, keep_every: int) -> None:
        self._keep_every = keep_every
        # torch 2.11 also calls it in the recomputation, and needs the same result
        self._num_products = {False: 0, True: 0}

    def __call__(self, context: Any, op: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        name = str(op.name()).rpartition("::")[2].partition(".")[0]
        if name in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if name in _PRODUCTS:
            self._num_products[context.is_recompute] += 1
            if self._num_products[context.is_recompute] % self._keep_every == 0:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
