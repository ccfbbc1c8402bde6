"""Continuation of prompts, token by token, with a cache of keys and values.

Legend: B prompts, T tokens of the longest one, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.train.errors import TrainingError
from windlass.train.model.cache import KVCache

if TYPE_CHECKING:
    from windlass.train.model.decoder import Decoder

__all__ = ["generate", "keep_likely"]


def generate(
    model: Decoder,
    tokens: Tensor | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """Generate new tokens for each prompt, without the prompt itself.

    `eos` ends a continuation and is its last token.

    Args:
        model: a whole decoder, on any device; sharded ones are run by all processes together.
        tokens: prompts of any lengths, or int64 (B, T) of equal ones.
        temperature: sampling temperature; 0 always takes the most likely token.
        top_k: sample from the k most likely tokens.
        top_p: sample from the most likely tokens with at least this total probability.
        seed: seed of sampling, with a prompt's position in the batch; independent of the other prompts.

    Raises:
        TrainingError: an empty prompt, or a token outside the vocabulary.
    """
    device = next(model.parameters()).device
    tokens_BT, documents_BT = _padded([list(prompt) for prompt in tokens], model.config.vocab_size, device)
    generators = [torch.Generator().manual_seed(((seed << 20) + row) % 2**64) for row in range(len(tokens_BT))]
    made: list[list[int]] = [[] for _ in generators]
    is_open = [max_new_tokens > 0] * len(made)
    cache = KVCache(model.config)
    while any(is_open):
        with torch.no_grad():
            logits_BTV = model(tokens_BT, documents_BT, cache=cache, num_logits=1)
        assert isinstance(logits_BTV, Tensor)
        chosen = _choose(logits_BTV[:, -1].float().cpu(), temperature, top_k, top_p, generators)
        for row, token in enumerate(chosen):
            if is_open[row]:
                made[row].append(token)
                is_open[row] = token != eos and len(made[row]) < max_new_tokens
        tokens_BT = torch.tensor(chosen, device=device)[:, None]
        documents_BT = None if documents_BT is None else torch.ones_like(documents_BT[:, :1])
    return made


def keep_likely(logits_BV: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Return the probabilities of the most likely tokens, at least one, and zero elsewhere. Source: Holtzman et al.

    2020.
    """
    if top_k is not None and top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
    shares_BV = logits_BV.softmax(dim=-1)
    if top_p is not None:
        sorted_BV, order_BV = shares_BV.sort(dim=-1, descending=True)
        is_beyond_BV = sorted_BV.cumsum(dim=-1) - sorted_BV >= top_p
        is_beyond_BV[:, 0] = False
        shares_BV = shares_BV.masked_fill(torch.zeros_like(is_beyond_BV).scatter(1, order_BV, is_beyond_BV), 0.0)
    return shares_BV / shares_BV.sum(dim=-1, keepdim=True)


def _padded(prompts: list[list[int]], vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Pad prompts on the left.

    The padding is a separate document, so that no token attends to it.
    """
    for row, prompt in enumerate(prompts):
        wrong = [token for token in prompt if not 0 <= int(token) < vocab_size]
        if wrong or not prompt:
            what = f"has token {int(wrong[0])}; the vocabulary has {vocab_size}" if wrong else "is empty"
            hint = "use the tokenizer that the model was trained with" if wrong else "start with a token, such as eos"
            raise TrainingError(f"prompt {row} {what}", hint=hint, code="invalid-value")
    longest = max((len(prompt) for prompt in prompts), default=0)
    tokens_BT = torch.zeros((len(prompts), longest), dtype=torch.int64)
    documents_BT = torch.zeros((len(prompts), longest), dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        tokens_BT[row, longest - len(prompt) :] = torch.as_tensor(prompt)
        documents_BT[row, longest - len(prompt) :] = 1
    is_even = all(len(prompt) == longest for prompt in prompts)
    return tokens_BT.to(device), None if is_even else documents_BT.to(device)


def _choose(
    logits_BV: Tensor, temperature: float, top_k: int | None, top_p: float | None, generators: list[torch.Generator]
) -> list[int]:
    if temperature == 0:
        return [int(token) for token in logits_BV.argmax(dim=-1)]
    shares_BV = keep_likely(logits_BV / temperature, top_k, top_p)
    return [
        int(shares_V.multinomial(1, generator=generator))
        for shares_V, generator in zip(shares_BV, generators, strict=True)
    ]
