"""Reading of given tokens: prompts into a cache of their own, and rows to score.

The shape of a forward depends only on the length of the rows that are in it, and a forward that is not full is padded with
empty rows: what else is read at the same time changes no bit of a row's result.

Legend: P rows of a forward, C tokens of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.post.rollout.slots import SlotCache

if TYPE_CHECKING:
    from windlass.post.rollout.types import ScoreRequest
    from windlass.train.model.decoder import Decoder

__all__ = ["Prefill", "ReadPrompts"]

SMALLEST_WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompts:
    """Prompts of similar lengths after their forward: keys and values in a cache, and what follows.

    Attributes:
        cache: a row for each prompt, in order; more rows are empty.
        logits_PV: logits of the token after each prompt.
        width: length of the longest prompt, rounded up as its forward was.
    """

    cache: SlotCache
    logits_PV: Tensor
    width: int


class Prefill:
    """Reads rows of tokens with a decoder, about `num_tokens` tokens at a time."""

    def __init__(self, model: Decoder, *, num_tokens: int) -> None:
        self._model = model
        self._num_tokens = max(num_tokens, SMALLEST_WIDTH)
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype

    def width(self, length: int) -> int:
        """Return the padded length of a row: 8, 12, 16, 24, 32, ..., or a multiple of the tokens of a forward."""
        if length > self._num_tokens:
            return -(-length // self._num_tokens) * self._num_tokens
        width = SMALLEST_WIDTH
        while width < length:
            width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
        return min(width, self._num_tokens)

    def num_rows(self, width: int) -> int:
        """Return the number of rows of one forward of this width."""
        return max(1, self._num_tokens // width)

    def read(self, prompts: Sequence[Sequence[int]]) -> ReadPrompts:
        """Read at most `num_rows` prompts whose padded lengths are equal."""
        cache, logits_P1V = None, None
        for cache, tokens_PC, last_P in self._chunks(prompts):
            logits_P1V = self._model(tokens_PC, cache=cache, logits_at_B=last_P)
        assert cache is not None
        assert isinstance(logits_P1V, Tensor)
        return ReadPrompts(cache=cache, logits_PV=logits_P1V[:, 0], width=self.width(len(prompts[0])))

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of each request's tokens from `start` on, computed in float32."""
        scores: list[tuple[float, ...]] = [()] * len(requests)
        by_width: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            by_width.setdefault(self.width(len(request.ids)), []).append(index)
        for width, indices in by_width.items():
            rows = self.num_rows(width)
            for first in range(0, len(indices), rows):
                chosen = indices[first : first + rows]
                logp_PC = self._logp([requests[index].ids for index in chosen])
                for index, logp in zip(chosen, logp_PC.tolist(), strict=False):
                    scores[index] = tuple(logp[requests[index].start - 1 : len(requests[index].ids) - 1])
        return scores

    def _logp(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the log-probability of the token after each position, float32 (P, padded length)."""
        width, parts, start = self.width(len(rows[0])), [], 0
        labels_PC = self._padded([row[1:] for row in rows], width)
        for cache, tokens_PC, _ in self._chunks(rows):
            logits_PCV = self._model(tokens_PC, cache=cache)
            assert isinstance(logits_PCV, Tensor)
            stop = start + tokens_PC.shape[1]
            logp_PCV = logits_PCV.float().log_softmax(dim=-1)
            parts.append(logp_PCV.gather(2, labels_PC[:, start:stop, None])[:, :, 0])
            start = stop
        return torch.cat(parts, dim=1)

    def _chunks(self, rows: Sequence[Sequence[int]]) -> Iterator[tuple[SlotCache, Tensor, Tensor]]:
        """Yield the forwards that read rows: cache, tokens, index of each row's last token within them.

        Only a single row is longer than a forward.
        """
        width = self.width(len(rows[0]))
        assert all(self.width(len(row)) == width for row in rows)
        cache = SlotCache(
            self._model.config,
            num_slots=self.num_rows(width),
            max_length=width,
            device=self._device,
            dtype=self._dtype,
        )
        tokens_PW = self._padded(rows, width)
        lengths = [len(row) for row in rows] + [0] * (cache.num_slots - len(rows))
        for start in range(0, width, self._num_tokens):
            stop = min(start + self._num_tokens, width)
            counts = [max(0, min(stop, length) - start) for length in lengths]
            cache.begin(counts, stop - start)
            last_P = torch.tensor([max(0, count - 1) for count in counts], device=self._device)
            yield cache, tokens_PW[:, start:stop], last_P

    def _padded(self, rows: Sequence[Sequence[int]], width: int) -> Tensor:
        filled = [[*row, *[0] * (width - len(row))] for row in rows]
        empty = [[0] * width] * (self.num_rows(width) - len(rows))
        return torch.tensor(filled + empty, dtype=torch.int64, device=self._device)
