"""Slots for the keys and values of samples: a row each, of fixed length, that samples enter and leave.

Legend: B slots, G key and value heads, T new tokens, S slot length, E keys that are read, K head size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.train.model.masks import DenseMask

if TYPE_CHECKING:
    from windlass.train.model.config import ModelConfig

__all__ = ["KEY_BLOCK", "SlotCache", "SlotLayer"]

KEY_BLOCK = 16
"""Attention reads a multiple of this many keys. Masked keys add exact zeros, and vector units sum 16 float32 at a time, so
that a row's result does not depend on how many keys other rows need (tests/post/rollout/test_slots.py)."""


class SlotLayer:
    """Keys and values of a layer; layers with a window keep all tokens too.

    A token's heads are next to each other, so that a token is written by one copy.
    """

    def __init__(self, owner: SlotCache, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self._owner = owner
        # zeros, because a masked value is still a factor: NaN times zero is NaN
        self.keys_BSGK = torch.zeros(shape, dtype=dtype, device=owner.device)
        self.values_BSGK = torch.zeros(shape, dtype=dtype, device=owner.device)

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens at each row's length; returns the first E keys and values, (B, G, E, K)."""
        step = self._owner.step
        for store_BSGK, new_BGTK in ((self.keys_BSGK, k_BGTK), (self.values_BSGK, v_BGTK)):
            new_BTGK = new_BGTK.transpose(1, 2)
            if step.start is not None:
                store_BSGK[:, step.start : step.start + step.width] = new_BTGK
            else:
                store_BSGK.flatten(0, 1).index_copy_(0, step.places_N, new_BTGK.flatten(0, 1).to(store_BSGK.dtype))
        keys_BEGK, values_BEGK = self.keys_BSGK[:, : step.num_keys], self.values_BSGK[:, : step.num_keys]
        return keys_BEGK.transpose(1, 2), values_BEGK.transpose(1, 2)


class _Step:
    """Places of the tokens of one forward.

    Attributes:
        start: first position of the tokens, if it is the same in all rows.
        positions_BT: positions in the rows.
        places_N: positions in all rows end to end.
    """

    def __init__(
        self, lengths: Sequence[int], width: int, num_keys: int, max_length: int, device: torch.device
    ) -> None:
        self.start = lengths[0] if len(set(lengths)) == 1 else None
        self.width, self.num_keys = width, num_keys
        firsts_B1 = torch.tensor(lengths, device=device)[:, None]
        self.positions_BT = firsts_B1 + torch.arange(width, device=device)
        rows_B1 = torch.arange(0, len(lengths) * max_length, max_length, device=device)[:, None]
        self.places_N = (rows_B1 + self.positions_BT).flatten()


class SlotCache:
    """Fixed rows of keys and values with a length each; a `RowCache` of the decoder.

    A forward computes all rows, those of empty slots too, so that its shape never depends on what runs.

    Attributes:
        lengths: tokens of each slot; 0 for empty ones.
    Memory: 2 * layers * B * G * S * K values, allocated once.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_slots, self.device = num_slots, device
        self.max_length = max_length
        self.lengths = [0] * num_slots
        shape = (num_slots, self.max_length, config.num_kv_heads, config.head_dim)
        self.slots = {str(layer): SlotLayer(self, shape, dtype) for layer in range(config.num_layers)}
        # attention with capped scores is plain matrix products, whose sums depend on the number of keys
        self._key_block = max_length if config.attention.soft_cap is not None else KEY_BLOCK
        self._counts: Sequence[int] = ()
        self._step: _Step | None = None

    @property
    def layers(self) -> Mapping[str, SlotLayer]:
        """Return the stores by block name."""
        return self.slots

    @property
    def step(self) -> _Step:
        """Return the places of the current forward's tokens."""
        assert self._step is not None, "begin() comes before a forward"
        return self._step

    def begin(self, counts: Sequence[int], width: int) -> None:
        """Prepare a forward of (B, `width`) tokens, of which the first `counts[row]` of a row are real.

        Padding is written behind a row's length, where nothing sees it and later tokens replace it.

        Raises:
            ValueError: a row has too few free positions.
        """
        longest = max(self.lengths) + width
        if longest > self.max_length:
            raise ValueError(f"{longest} tokens exceed the slots' length of {self.max_length}")
        self._counts = counts
        num_keys = min(-(-longest // self._key_block) * self._key_block, self.max_length)
        self._step = _Step(self.lengths, width, num_keys, self.max_length, self.device)

    def positions(self) -> Tensor:
        """Return the positions of this forward's tokens in their rows, int64 (B, T)."""
        return self.step.positions_BT

    def masks(self, windows: Collection[int | None]) -> Mapping[int | None, DenseMask]:
        """Return the mask of each window for this forward's tokens."""
        return {window: self._mask(window) for window in windows}

    def _mask(self, window: int | None) -> DenseMask:
        is_whole = window is None or window >= self.step.num_keys
        if self.step.start == 0 and self.step.width == self.step.num_keys and is_whole:
            return DenseMask(is_causal=True)
        keys_E = torch.arange(self.step.num_keys, device=self.device)
        back_BTE = self.step.positions_BT[:, :, None] - keys_E
        seen_BTE = back_BTE >= 0
        if window is not None:
            seen_BTE &= back_BTE < window
        return DenseMask(is_causal=False, seen_BQS=seen_BTE, is_grouped=True)

    def advance(self, num_new: int) -> None:
        """End the forward: add each row's real tokens to its length."""
        assert num_new == self.step.width
        self.lengths = [length + count for length, count in zip(self.lengths, self._counts, strict=True)]
        self._step = None

    def reset(self, rows: Collection[int]) -> None:
        """Empty slots; costs nothing, their memory is overwritten later."""
        for row in rows:
            self.lengths[row] = 0

    def fork(self, source: SlotCache, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` tokens of the source's rows into slots, one or more slots for a row.

        Args:
            pairs: (row of the source, slot); lengths are those of the source's rows and at most `length`.
        """
        from_N = torch.tensor([row for row, _ in pairs], device=self.device)
        to_N = torch.tensor([slot for _, slot in pairs], device=self.device)
        for name, layer in self.slots.items():
            other = source.slots[name]
            layer.keys_BSGK[to_N, :length] = other.keys_BSGK[from_N, :length]
            layer.values_BSGK[to_N, :length] = other.values_BSGK[from_N, :length]
        for row, slot in pairs:
            self.lengths[slot] = source.lengths[row]

    def free(self) -> None:
        """Give the memory back; the slots cannot be used afterwards."""
        self.slots.clear()
        self.lengths = [0] * self.num_slots
