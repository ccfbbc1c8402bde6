"""Log-probabilities of tokens with gradient, from the last hidden states, without all logits in memory at once.

Legend: B rows, T tokens of a row, N = B * T positions, C positions of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from windlass.train.batch import IGNORE
from windlass.train.errors import TrainingError
from windlass.train.optim.loss import chunk_rows

__all__ = ["LogProbs", "TokenScores", "token_logprobs"]


class TokenScores(NamedTuple):
    """Scores of a microbatch's labels; all tensors have the shape of the labels.

    Attributes:
        logp: log-probability of the label; 0 where it is IGNORE.
        entropy: entropy of the distribution in nats; 0 where the label is IGNORE; None unless wanted.
        log_squares: log of the sum of squared probabilities over the vocabulary, without gradient; 0 where the label
            is IGNORE; None unless wanted. WPO weighs with it.
        aux: losses of experts, the mean over tokens times the number of counted labels; None without experts.
    """

    logp: Tensor
    entropy: Tensor | None
    log_squares: Tensor | None
    aux: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbs:
    """Head function of `Decoder.forward(labels_BT=..., loss=...)` that returns `TokenScores` of shape (B, T).

    Attributes:
        temperature: logits are divided by it, as at sampling.
        wants_entropy: whether to compute the entropy.
        wants_log_squares: whether to compute `log_squares`.
    """

    temperature: float = 1.0
    wants_entropy: bool = False
    wants_log_squares: bool = False

    def __call__(
        self,
        hidden_BTD: Tensor,
        head_weight_VD: Tensor,
        labels_BT: Tensor,
        *,
        soft_cap: float | None,
        aux: Tensor | None,
    ) -> TokenScores:
        """Compute scores of (B, T) labels; `aux` is a mean over tokens."""
        found = token_logprobs(
            hidden_BTD.flatten(0, -2),
            head_weight_VD,
            labels_BT.flatten(),
            temperature=self.temperature,
            soft_cap=soft_cap,
            wants_entropy=self.wants_entropy,
            wants_log_squares=self.wants_log_squares,
        )
        losses = None if aux is None else aux.double() * (labels_BT != IGNORE).sum()
        # Copies, not views: FSDP warns about those.
        return _changed(found, lambda scores_N: scores_N.view_as(labels_BT).clone())._replace(aux=losses)


def token_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    labels_N: Tensor,
    *,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    wants_entropy: bool = False,
    wants_log_squares: bool = False,
    rows: int | None = None,
) -> TokenScores:
    """Return log-probabilities of labels, and entropies, whose gradients are exact for any gradient of theirs.

    Args:
        labels_N: the token that follows each position, or IGNORE.
        temperature: logits are divided by it, after `soft_cap`.
        soft_cap: logits go through cap * tanh(logit / cap).
        rows: positions of a chunk; None: as many as `train.optim.loss` takes.

    Returns:
        Tensors of shape (N,), float32 (float64 if `hidden_ND` is).
    Cost: a chunk of logits at a time; the backward pass computes each chunk's logits again, so a step costs four
        products with the head instead of three. On a CPU, positions whose label is IGNORE cost nothing.

    Raises:
        TrainingError: the vocabulary of `head_VD` is sharded over processes.
    """
    if isinstance(head_VD, DTensor) or isinstance(hidden_ND, DTensor):
        message = "log-probabilities of tokens need the whole head, but its vocabulary is sharded over processes"
        raise TrainingError(message, hint="set `parallel.tensor=1`", code="unsupported-model")
    if hidden_ND.device.type == "cpu" and bool((labels_N == IGNORE).any()):
        return _of_counted(hidden_ND, head_VD, labels_N, temperature, soft_cap, wants_entropy, wants_log_squares, rows)
    rows = rows or chunk_rows(hidden_ND, head_VD.shape[0])
    logp_N, entropy_N, squares_N = _Chunked.apply(
        hidden_ND, head_VD, labels_N, temperature, soft_cap, wants_entropy, wants_log_squares, rows
    )
    return TokenScores(logp_N, entropy_N if wants_entropy else None, squares_N if wants_log_squares else None)


def _of_counted(hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor, *settings: Any) -> TokenScores:
    """Compute scores at the positions whose label counts, and put 0 at the others."""
    temperature, soft_cap, wants_entropy, wants_log_squares, rows = settings
    places = (labels_N != IGNORE).nonzero()[:, 0]
    found = token_logprobs(
        hidden_ND[places],
        head_VD,
        labels_N[places],
        temperature=temperature,
        soft_cap=soft_cap,
        wants_entropy=wants_entropy,
        wants_log_squares=wants_log_squares,
        rows=rows,
    )
    return _changed(found, lambda scores_C: scores_C.new_zeros(len(labels_N)).index_copy(0, places, scores_C))


def _changed(found: TokenScores, change: Callable[[Tensor], Tensor]) -> TokenScores:
    return TokenScores(
        change(found.logp),
        None if found.entropy is None else change(found.entropy),
        None if found.log_squares is None else change(found.log_squares),
    )


class _Chunked(torch.autograd.Function):
    """Scores chunk by chunk; keeps hidden states, head and labels, never logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        labels_N: Tensor,
        temperature: float,
        soft_cap: float | None,
        wants_entropy: bool,
        wants_log_squares: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
        ctx.settings = (temperature, soft_cap, wants_entropy, rows, dtype)
        ctx.save_for_backward(hidden_ND, head_VD, labels_N)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        logp_N = torch.zeros(len(labels_N), dtype=wide, device=hidden_ND.device)
        entropy_N, squares_N = torch.zeros_like(logp_N), torch.zeros_like(logp_N)
        own_VD = head_VD.to(dtype)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(labels_N), rows):
                place = slice(start, start + rows)
                labels_C = labels_N[place]
                counts_C = labels_C != IGNORE
                logs_CV, _ = _log_softmax(hidden_ND[place].to(dtype), own_VD, temperature, soft_cap)
                picked_C = logs_CV.gather(1, labels_C.clamp(min=0)[:, None])[:, 0]
                logp_N[place] = torch.where(counts_C, picked_C, 0.0)
                if wants_log_squares:
                    squares_N[place] = torch.where(counts_C, (2.0 * logs_CV).logsumexp(dim=-1), 0.0)
                if wants_entropy:
                    entropy_N[place] = torch.where(counts_C, _entropy(logs_CV, logs_CV.exp()), 0.0)
        ctx.mark_non_differentiable(squares_N)
        return logp_N, entropy_N, squares_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp_N: Tensor, grad_entropy_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, head_VD, labels_N = ctx.saved_tensors
        temperature, soft_cap, wants_entropy, rows, dtype = ctx.settings
        wide = grad_logp_N.dtype
        grad_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_VD = torch.zeros_like(head_VD, dtype=wide) if ctx.needs_input_grad[1] else None
        own_VD = head_VD.to(dtype)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for start in range(0, len(labels_N), rows):
                place = slice(start, start + rows)
                hidden_CD, labels_C = hidden_ND[place].to(dtype), labels_N[place]
                counts_C = labels_C != IGNORE
                logs_CV, slopes_CV = _log_softmax(hidden_CD, own_VD, temperature, soft_cap)
                grad_C = torch.where(counts_C, grad_logp_N[place], 0.0)
                entropy_C = torch.where(counts_C, grad_entropy_N[place], 0.0) if wants_entropy else None
                grad_CV = _grad_logits(logs_CV, labels_C.clamp(min=0), grad_C, entropy_C)
                grad_CV = (grad_CV / temperature if slopes_CV is None else grad_CV.mul_(slopes_CV)).to(dtype)
                if grad_ND is not None:
                    grad_ND[place] = grad_CV @ own_VD
                if grad_VD is not None:
                    grad_VD.add_(grad_CV.T @ hidden_CD)
        return grad_ND, None if grad_VD is None else grad_VD.to(head_VD.dtype), *[None] * 6


def _log_softmax(
    hidden_CD: Tensor, head_VD: Tensor, temperature: float, soft_cap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities; with a soft cap also the derivative of what enters the softmax by the raw logits."""
    logits_CV = hidden_CD @ head_VD.T
    if logits_CV.dtype != torch.float64:
        logits_CV = logits_CV.float()
    if soft_cap is None:
        return F.log_softmax(logits_CV / temperature if temperature != 1.0 else logits_CV, dim=-1), None
    bent_CV = torch.tanh(logits_CV / soft_cap)
    slopes_CV = (1.0 - bent_CV.square()) / temperature
    return F.log_softmax(bent_CV * (soft_cap / temperature), dim=-1), slopes_CV


def _entropy(logs_CV: Tensor, probs_CV: Tensor) -> Tensor:
    """Return entropies; a token of probability 0 (logit -inf) adds nothing."""
    return -(probs_CV * logs_CV.clamp(min=torch.finfo(logs_CV.dtype).min)).sum(dim=-1)


def _grad_logits(logs_CV: Tensor, labels_C: Tensor, grad_logp_C: Tensor, grad_entropy_C: Tensor | None) -> Tensor:
    """Return the gradient of the softmax's input from those of log-probabilities and entropies."""
    probs_CV = logs_CV.exp()
    grad_CV = probs_CV * -grad_logp_C[:, None]
    grad_CV.scatter_add_(1, labels_C[:, None], grad_logp_C[:, None])
    if grad_entropy_C is not None:
        logs_CV = logs_CV.clamp(min=torch.finfo(logs_CV.dtype).min)
        entropy_C = _entropy(logs_CV, probs_CV)
        grad_CV.sub_(probs_CV.mul_(logs_CV + entropy_C[:, None]) * grad_entropy_C[:, None])
    return grad_CV
