"""Loss for a decoder whose head is split by rows, so that no process holds all logits.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.

Legend: B rows, T tokens, N = B * T, D width, V vocabulary, U rows of the vocabulary that this process holds.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate

from windlass.train.batch import IGNORE

__all__ = ["vocabulary_loss"]


def vocabulary_loss(
    hidden: Tensor, head_weight: DTensor, labels_BT: Tensor, *, z_loss: float, soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and z-loss with a head that is split by rows; equal on all processes. Collective.

    Args:
        hidden: (B, T, D), split along the sequence or whole.
        head_weight: (V, D), split along the vocabulary over the one axis of its mesh.
        labels_BT: whole on every process.

    Returns:
        Float64 scalars, summed over counted labels; the second one includes its weight.
    """
    mesh = head_weight.device_mesh
    if isinstance(hidden, DTensor):
        whole = hidden.redistribute(placements=[Replicate()])
        # Each process computes the part of the gradient from its rows of the vocabulary.
        hidden = whole.to_local(grad_placements=[Partial()])
    weight_UD = head_weight.to_local()
    logits_NU = F.linear(hidden.flatten(0, -2), weight_UD).float()
    if soft_cap is not None:
        logits_NU = soft_cap * torch.tanh(logits_NU / soft_cap)
    first = mesh.get_local_rank() * -(-head_weight.shape[0] // mesh.size())
    loss, squares = _VocabularyLoss.apply(logits_NU, labels_BT.flatten(), first, z_loss, mesh.get_group())
    return loss, squares


class _VocabularyLoss(torch.autograd.Function):
    """Sums of cross-entropy and weighted squared normalisers over this process's columns of the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits_NU: Tensor, labels_N: Tensor, first: int, z_loss: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        counts_N = labels_N != IGNORE
        own_N = labels_N - first
        is_here_N = counts_N & (own_N >= 0) & (own_N < logits_NU.shape[1])
        own_N1 = own_N.clamp(0, logits_NU.shape[1] - 1)[:, None]
        top_N = logits_NU.amax(dim=1)
        dist.all_reduce(top_N, dist.ReduceOp.MAX, group=group)
        exps_NU = (logits_NU - top_N[:, None]).exp_()
        target_N = torch.where(is_here_N, logits_NU.gather(1, own_N1)[:, 0] - top_N, 0.0)
        sums_2N = torch.stack((exps_NU.sum(dim=1), target_N))
        dist.all_reduce(sums_2N, group=group)
        log_sum_N = sums_2N[0].log()
        normaliser_N = log_sum_N + top_N
        ctx.z_loss = z_loss
        ctx.save_for_backward(exps_NU.div_(sums_2N[0][:, None]), normaliser_N, counts_N, is_here_N, own_N1)
        loss = torch.where(counts_N, log_sum_N - sums_2N[1], 0.0).sum(dtype=torch.float64)
        return loss, z_loss * torch.where(counts_N, normaliser_N.square(), 0.0).sum(dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, grad_square: Tensor) -> tuple[Tensor | None, ...]:
        probs_NU, normaliser_N, counts_N, is_here_N, own_N1 = ctx.saved_tensors
        slope_NU = probs_NU * (grad_loss + 2.0 * ctx.z_loss * grad_square * normaliser_N)[:, None]
        slope_NU.scatter_add_(1, own_N1, -grad_loss * is_here_N[:, None].to(slope_NU.dtype))
        return slope_NU * counts_N[:, None], None, None, None, None
