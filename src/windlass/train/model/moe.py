"""Mixture of experts that drops no token.

Legend: B rows, T tokens of a row, N = B * T tokens, P = N * top_k pairs of a token and an expert, E experts,
D width of the residual stream, H hidden size of an expert, K experts of a token,
I and O channels into and out of a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.train.model.config import MoEConfig
from windlass.train.model.layers import FeedForward

__all__ = ["MoE", "Transport", "run_experts", "run_grouped"]

Transport: TypeAlias = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor]


class MoE(nn.Module):
    """Mixture of experts with a router, experts as stacked SwiGLU matrices, and optionally a shared expert.

    Attributes:
        transport: sends pairs to experts on other processes; set by expert parallelism. Called with
            (run, x_PD sorted by expert, counts_E); returns outputs in that order. None: all experts are local.
    """

    def __init__(self, d_model: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        num, hidden = config.num_experts, config.hidden
        self.router = nn.Linear(d_model, num, bias=False)
        self.gate = nn.Parameter(torch.empty(num, hidden, d_model))
        self.up = nn.Parameter(torch.empty(num, hidden, d_model))
        self.down = nn.Parameter(torch.empty(num, d_model, hidden))
        self.shared = FeedForward(d_model, config.shared_hidden) if config.shared_hidden else None
        self.transport: Transport | None = None

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return an output of the same shape, and the weighted balance and z losses (float32, mean over tokens)."""
        x_ND = x_BTD.flatten(0, 1)
        logits_NE = self.router(x_ND).float()
        weights_NK, chosen_NK, shares_NE = self._choose(logits_NE)
        chosen_P = chosen_NK.flatten()
        order_P = chosen_P.argsort(stable=True)
        place_P = torch.empty_like(order_P).scatter_(0, order_P, torch.arange(len(order_P), device=order_P.device))
        # not bincount, which synchronizes with the GPU
        counts_E = torch.zeros_like(logits_NE[0], dtype=torch.int64).scatter_add_(
            0, chosen_P, torch.ones_like(chosen_P)
        )
        sent_PD: Tensor = _Send.apply(x_ND, order_P, place_P)
        made_PD = self._experts(sent_PD, counts_E)
        back_PD: Tensor = _Return.apply(made_PD, order_P, place_P)
        made_NKD: Tensor = back_PD.unflatten(0, weights_NK.shape)
        out_ND = (made_NKD * weights_NK[..., None].to(x_ND.dtype)).sum(dim=1)
        if self.shared is not None:
            out_ND = out_ND + self.shared(x_ND)
        return out_ND.view_as(x_BTD), self._losses(logits_NE, shares_NE, counts_E)

    def _choose(self, logits_NE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.config.gate == "softmax":
            shares_NE = logits_NE.softmax(dim=-1)
            scores_NE = shares_NE
        else:
            scores_NE = logits_NE.sigmoid()
            shares_NE = scores_NE / scores_NE.sum(dim=-1, keepdim=True)
        weights_NK, chosen_NK = scores_NE.topk(self.config.top_k, dim=-1)
        if self.config.normalize:
            weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True)
        return weights_NK, chosen_NK, shares_NE

    def _experts(self, x_PD: Tensor, counts_E: Tensor) -> Tensor:
        if self.transport is not None:
            return self.transport(self.run, x_PD, counts_E)
        return self.run(x_PD, counts_E)

    def run(self, x_PD: Tensor, counts_E: Tensor) -> Tensor:
        """Run the local experts on rows that are sorted by expert."""
        return run_experts(x_PD, counts_E, *(_here(weight) for weight in (self.gate, self.up, self.down)))

    def _losses(self, logits_NE: Tensor, shares_NE: Tensor, counts_E: Tensor) -> Tensor:
        config = self.config
        used_E = counts_E.to(shares_NE.dtype) / counts_E.sum()
        total = config.balance_loss * config.num_experts * (used_E * shares_NE.mean(dim=0)).sum()
        if config.router_z_loss:
            total = total + config.router_z_loss * logits_NE.logsumexp(dim=-1).square().mean()
        return total


def run_experts(x_PD: Tensor, counts_E: Tensor, gate_EHD: Tensor, up_EHD: Tensor, down_EDH: Tensor) -> Tensor:
    """Return the SwiGLU output for rows that are sorted by expert, each computed with its expert's matrices.

    On a GPU in bfloat16, uses three grouped matrix products, whatever the counts; else runs the experts in turn.
    """
    if x_PD.device.type == "cuda" and x_PD.dtype == torch.bfloat16 and hasattr(F, "grouped_mm"):
        return run_grouped(x_PD, counts_E, gate_EHD, up_EHD, down_EDH)
    parts = x_PD.split(counts_E.tolist())
    made = [
        F.linear(F.silu(F.linear(part_PD, gate_HD)) * F.linear(part_PD, up_HD), down_DH)
        for part_PD, gate_HD, up_HD, down_DH in zip(parts, gate_EHD, up_EHD, down_EDH, strict=True)
    ]
    return torch.cat(made)


def run_grouped(x_PD: Tensor, counts_E: Tensor, gate_EHD: Tensor, up_EHD: Tensor, down_EDH: Tensor) -> Tensor:
    """Run the experts as grouped products in bfloat16; the host does not wait for the counts."""
    ends_E = counts_E.cumsum(0).to(torch.int32)

    def times(rows_PI: Tensor, weights_EOI: Tensor) -> Tensor:
        product_PO: Tensor = F.grouped_mm(rows_PI, weights_EOI.to(rows_PI.dtype).transpose(1, 2), offs=ends_E)
        return product_PO

    return times(F.silu(times(x_PD, gate_EHD)) * times(x_PD, up_EHD), down_EDH)


def _here(weight: Tensor) -> Tensor:
    """Return the experts on this process.

    Tests for DTensor's method, because importing the class takes 0.5 s.
    """
    return weight.to_local() if hasattr(weight, "to_local") else weight


class _Send(torch.autograd.Function):
    """Copy of tokens into the order of experts.

    The backward pass gathers without atomics, so it is deterministic.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order_P: Tensor, place_P: Tensor) -> Tensor:
        ctx.save_for_backward(place_P)
        ctx.copies = len(order_P) // len(x_ND)
        return x_ND.index_select(0, order_P // ctx.copies)

    @staticmethod
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None, None]:
        (place_P,) = ctx.saved_tensors
        return grad_PD.index_select(0, place_P).unflatten(0, (-1, ctx.copies)).sum(dim=1), None, None


class _Return(torch.autograd.Function):
    """Copy of tokens back into their original order."""

    @staticmethod
    def forward(ctx: Any, made_PD: Tensor, order_P: Tensor, place_P: Tensor) -> Tensor:
        ctx.save_for_backward(order_P)
        return made_PD.index_select(0, place_P)

    @staticmethod
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None, None]:
        (order_P,) = ctx.saved_tensors
        return grad_PD.index_select(0, order_P), None, None
