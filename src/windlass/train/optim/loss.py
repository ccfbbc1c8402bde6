"""Cross-entropy of a language model from its last hidden states, with all logits in memory at once or in chunks.

Legend: B rows, T tokens of a row, N = B * T positions, C positions of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from windlass.train.batch import IGNORE

if TYPE_CHECKING:
    from windlass.train.optim.config import LossConfig

__all__ = ["chunk_rows", "language_loss", "logits_loss"]

CPU_CHUNK_LOGITS = 2**19
"""Logits of a chunk on a CPU: 2 MiB in float32, so that they stay in its cache (benches/bench_train_loss.py)."""

GPU_CHUNK_LOGITS = 2**27
"""Logits of a chunk on a GPU: 512 MiB in float32, enough for each matrix product to fill it."""

MIN_CHUNK = 128


def language_loss(
    hidden_BTD: Tensor, head_weight_VD: Tensor, labels_BT: Tensor, *, loss: LossConfig, soft_cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and z-loss, summed over the labels that are not IGNORE.

    Differentiate the sum of both, once: the chunked loss computes their joint gradient in the forward pass.

    Args:
        labels_BT: the token that follows each position, already shifted.
        loss: weight of the z-loss, and the kind of computation.
        soft_cap: logits go through cap * tanh(logit / cap).

    Returns:
        Two float64 scalars, so that a sum over many labels is not rounded; the second one holds its weight.
    Cost: the plain loss holds B * T * V logits several times; the chunked one holds a chunk of them, and the gradients
        of hidden states and head from the forward pass on.
    """
    if isinstance(head_weight_VD, DTensor):
        from windlass.train.parallel.vocabulary_loss import vocabulary_loss  # lazy: tensor parallelism only

        return vocabulary_loss(hidden_BTD, head_weight_VD, labels_BT, z_loss=loss.z_loss, soft_cap=soft_cap)
    hidden_ND, labels_N = hidden_BTD.flatten(0, -2), labels_BT.flatten()
    if is_chunked(hidden_ND, head_weight_VD, loss.kind):
        rows = chunk_rows(hidden_ND, head_weight_VD.shape[0])
        with_grad = torch.is_grad_enabled()
        pair: tuple[Tensor, Tensor] = _Chunked.apply(
            hidden_ND, head_weight_VD, labels_N, loss.z_loss, soft_cap, rows, with_grad
        )
        return pair
    return _plain(hidden_ND, head_weight_VD, labels_N, loss.z_loss, soft_cap)


def is_chunked(hidden_ND: Tensor, head_weight_VD: Tensor, kind: str) -> bool:
    """Return whether a loss with these sizes, on this device, is computed in chunks.

    On a CPU, chunks are faster at any size (cache); on a GPU they only save memory. A sharded head needs DTensor's
    operations, so its loss is not chunked.
    """
    if kind != "auto":
        return kind == "chunked"
    if type(head_weight_VD) not in {Tensor, torch.nn.Parameter} or type(hidden_ND) is not Tensor:
        return False
    if hidden_ND.device.type == "cpu":
        return True
    num_logits: int = hidden_ND.shape[0] * head_weight_VD.shape[0]
    return num_logits > 2 * GPU_CHUNK_LOGITS


def _plain(
    hidden_ND: Tensor, head_weight_VD: Tensor, labels_N: Tensor, z_loss: float, soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    logits_NV = F.linear(hidden_ND, head_weight_VD).float()
    if soft_cap is not None:
        logits_NV = soft_cap * torch.tanh(logits_NV / soft_cap)
    return logits_loss(logits_NV, labels_N, z_loss)


def logits_loss(logits_NV: Tensor, labels_N: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and z-loss for given logits."""
    logits_NV = logits_NV.float()
    loss = F.cross_entropy(logits_NV, labels_N, reduction="none", ignore_index=IGNORE).sum(dtype=torch.float64)
    if z_loss == 0.0:
        return loss, loss.new_zeros(())
    squares_N = logits_NV.logsumexp(dim=-1).square()
    return loss, z_loss * torch.where(labels_N != IGNORE, squares_N, 0.0).sum(dtype=torch.float64)


def chunk_rows(hidden_ND: Tensor, vocabulary: int) -> int:
    """Return the positions of a chunk, for a device and a size of the vocabulary."""
    most = CPU_CHUNK_LOGITS if hidden_ND.device.type == "cpu" else GPU_CHUNK_LOGITS
    return max(MIN_CHUNK, most // vocabulary)


class _Chunked(torch.autograd.Function):
    """Loss and gradients computed chunk by chunk, freeing the logits of each chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_weight_VD: Tensor,
        labels_N: Tensor,
        z_loss: float,
        soft_cap: float | None,
        rows: int,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        device = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
        head_VD = head_weight_VD.to(dtype)
        grad_ND = torch.empty_like(hidden_ND) if with_grad and ctx.needs_input_grad[0] else None
        grad_VD = None
        if with_grad and ctx.needs_input_grad[1]:
            grad_VD = torch.zeros_like(head_weight_VD, dtype=torch.float32)
        sums_2 = torch.zeros(2, dtype=torch.float64, device=hidden_ND.device)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden_ND.shape[0], rows):
                hidden_CD, labels_C = hidden_ND[start : start + rows].to(dtype), labels_N[start : start + rows]
                logits_CV = (hidden_CD @ head_VD.T).float()
                if soft_cap is not None:
                    logits_CV.div_(soft_cap).tanh_().mul_(soft_cap)
                probs_CV, normaliser_C = _chunk_loss(logits_CV, labels_C, sums_2)
                if grad_ND is None and grad_VD is None:
                    continue
                slope_CV = _slope(probs_CV, normaliser_C, labels_C, z_loss)
                if soft_cap is not None:
                    slope_CV.mul_(logits_CV.div_(soft_cap).square_().neg_().add_(1.0))
                slope_CV = slope_CV.to(dtype)
                if grad_ND is not None:
                    grad_ND[start : start + rows] = slope_CV @ head_VD
                if grad_VD is not None:
                    _add_product(grad_VD, slope_CV, hidden_CD)
        ctx.save_for_backward(grad_ND, None if grad_VD is None else grad_VD.to(head_weight_VD.dtype))
        sums_2[1].mul_(z_loss)
        loss, squares = sums_2[0].clone(), sums_2[1].clone()  # no views: FSDP warns about them
        ctx.mark_non_differentiable(squares)
        return loss, squares

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.saved_tensors
        first = None if grad_ND is None else grad_ND.mul_(grad_loss.to(grad_ND.dtype))
        second = None if grad_VD is None else grad_VD.mul_(grad_loss.to(grad_VD.dtype))
        return first, second, None, None, None, None, None


def _chunk_loss(logits_CV: Tensor, labels_C: Tensor, sums_2: Tensor) -> tuple[Tensor, Tensor]:
    """Add a chunk's loss and squared normalisers to `sums_2`; return its probabilities and normalisers."""
    counts_C = labels_C != IGNORE
    labels_C1 = labels_C.clamp(min=0)[:, None]
    logs_CV = F.log_softmax(logits_CV, dim=-1)
    log_C = logs_CV.gather(1, labels_C1)[:, 0]
    normaliser_C = logits_CV.gather(1, labels_C1)[:, 0] - log_C
    sums_2[0] -= torch.where(counts_C, log_C, 0.0).sum(dtype=torch.float64)
    sums_2[1] += torch.where(counts_C, normaliser_C.square(), 0.0).sum(dtype=torch.float64)
    return logs_CV.exp_(), normaliser_C


def _slope(probs_CV: Tensor, normaliser_C: Tensor, labels_C: Tensor, z_loss: float) -> Tensor:
    """Convert probabilities in place to the gradient of loss + z_loss * normaliser**2."""
    counts_C = labels_C != IGNORE
    if z_loss or labels_C.device.type != "cpu" or not bool(counts_C.all()):
        probs_CV.mul_((counts_C * (1.0 + 2.0 * z_loss * normaliser_C))[:, None])
    return probs_CV.scatter_add_(1, labels_C.clamp(min=0)[:, None], -counts_C.to(probs_CV.dtype)[:, None])


def _add_product(grad_VD: Tensor, slope_CV: Tensor, hidden_CD: Tensor) -> None:
    if slope_CV.dtype == grad_VD.dtype:
        grad_VD.addmm_(slope_CV.T, hidden_CD)
    else:
        grad_VD.add_(slope_CV.T @ hidden_CD)
