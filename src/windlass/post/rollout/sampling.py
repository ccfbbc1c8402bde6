"""Choice of the next token for all rows at once, from random numbers that are counted and not drawn.

A row's result depends, to the last bit, on its own logits, settings and random number, whatever the other rows are: rows
without a setting go through the same operations with a neutral value.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.post.rollout.streams import FIRST, GOLDEN, SECOND

if TYPE_CHECKING:
    from windlass.post.rollout.types import Sampling

__all__ = ["Chosen", "SamplingRows", "choose", "processed", "uniforms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Settings of sampling for each row, as tensors; neutral where a row does not use one.

    Attributes:
        temperature_B: float32; 1 for greedy rows.
        is_greedy_B: rows that take the most likely token; None if no row does.
        top_k_B: int64, at least 1; None if no row uses it.
        top_p_B: float32; None if no row uses it.
        is_plain: no row changes its distribution.
    """

    temperature_B: Tensor
    is_greedy_B: Tensor | None
    top_k_B: Tensor | None
    top_p_B: Tensor | None
    is_plain: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling | None], vocab_size: int, device: torch.device) -> SamplingRows:
        """Return the settings as tensors; None is an empty row."""
        filled = [row for row in rows if row is not None]
        temperatures = [1.0 if row is None or row.temperature == 0 else row.temperature for row in rows]
        is_greedy = any(row.temperature == 0 for row in filled)
        has_top_k = any(row.top_k is not None and row.top_k < vocab_size and row.temperature for row in filled)
        has_top_p = any(row.top_p is not None and row.top_p < 1 and row.temperature for row in filled)
        top_k = [vocab_size if row is None or not row.temperature else row.top_k or vocab_size for row in rows]
        top_p = [1.0 if row is None or not row.temperature else row.top_p or 1.0 for row in rows]
        return cls(
            temperature_B=torch.tensor(temperatures, dtype=torch.float32, device=device),
            is_greedy_B=torch.tensor([bool(row and row.temperature == 0) for row in rows], device=device)
            if is_greedy
            else None,
            top_k_B=torch.tensor([min(k, vocab_size) for k in top_k], device=device) if has_top_k else None,
            top_p_B=torch.tensor(top_p, dtype=torch.float32, device=device) if has_top_p else None,
            is_plain=not has_top_k and not has_top_p and all(value == 1 for value in temperatures),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Chosen tokens, int64 (B,), and their log-probabilities, float32 (B,): after processing, and the model's own."""

    tokens_B: Tensor
    logp_B: Tensor
    raw_logp_B: Tensor


def choose(logits_BV: Tensor, settings: SamplingRows, uniforms_B: Tensor) -> Chosen:
    """Choose a token for each row by inverting its cumulative distribution.

    Args:
        uniforms_B: float64 in [0, 1).
    Cost: O(B * V); with top-k or top-p a sort of each row.
    """
    raw_BV = logits_BV.float().log_softmax(dim=-1)
    final_BV = raw_BV if settings.is_plain else processed(logits_BV, settings)
    cumulative_BV = final_BV.double().exp_().cumsum_(dim=-1)
    aims_B1 = (uniforms_B * cumulative_BV[:, -1])[:, None]
    # the first token whose cumulative probability is above the aim; it is never one of probability zero
    tokens_B1 = torch.searchsorted(cumulative_BV, aims_B1, right=True).clamp_(max=logits_BV.shape[-1] - 1)  # for NaN
    if settings.is_greedy_B is not None:
        tokens_B1 = torch.where(settings.is_greedy_B[:, None], logits_BV.argmax(dim=-1, keepdim=True), tokens_B1)
    raw_logp_B = raw_BV.gather(1, tokens_B1)[:, 0]
    logp_B = raw_logp_B if settings.is_plain else final_BV.gather(1, tokens_B1)[:, 0]
    return Chosen(tokens_B=tokens_B1[:, 0], logp_B=logp_B, raw_logp_B=raw_logp_B)


def processed(logits_BV: Tensor, settings: SamplingRows) -> Tensor:
    """Return log-probabilities after temperature, top-k and top-p, in this order; minus infinity for excluded tokens.

    The tokens kept are those of `windlass.train.generation.generate.keep_likely`. Source: Holtzman et al. 2020.
    """
    logits_BV = logits_BV.float() / settings.temperature_B[:, None]
    if settings.top_k_B is None and settings.top_p_B is None:
        return logits_BV.log_softmax(dim=-1)
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    if settings.top_k_B is not None:
        least_B1 = sorted_BV.gather(1, settings.top_k_B[:, None] - 1)
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
        sorted_BV = sorted_BV.masked_fill(sorted_BV < least_B1, float("-inf"))
    if settings.top_p_B is not None:
        shares_BV = sorted_BV.softmax(dim=-1)
        is_beyond_BV = (shares_BV.cumsum(dim=-1) - shares_BV >= settings.top_p_B[:, None]) & (
            settings.top_p_B[:, None] < 1
        )
        is_beyond_BV[:, 0] = False
        excluded_BV = torch.zeros_like(is_beyond_BV).scatter_(1, order_BV, is_beyond_BV)
        logits_BV = logits_BV.masked_fill(excluded_BV, float("-inf"))
    return logits_BV.log_softmax(dim=-1)


def uniforms(keys_B: Tensor, positions_B: Tensor) -> Tensor:
    """Return `streams.uniform` of each row's key and position, both int64 (B,); float64 (B,)."""
    x_B = keys_B + (positions_B + 1) * _signed(GOLDEN)
    x_B = (x_B ^ _shifted(x_B, 30)) * _signed(FIRST)
    x_B = (x_B ^ _shifted(x_B, 27)) * _signed(SECOND)
    x_B = x_B ^ _shifted(x_B, 31)
    return _shifted(x_B, 12).double() * 2.0**-52


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shifted(x_B: Tensor, bits: int) -> Tensor:
    """Return a logical shift to the right; torch's is arithmetic."""
    return (x_B >> bits) & ((1 << (64 - bits)) - 1)
