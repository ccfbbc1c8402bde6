"""Slots for the keys and values of samples: a row each, of fixed length, that samples enter and leave.

Keys and values lie in tiles of TILE tokens, and a tile holds those of all slots: what a step reads is one contiguous piece
of memory, however long slots are.

Legend: L layers, N tiles, B slots, G key and value heads, S tokens of a tile, T new tokens, E keys that are read, K head size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.train.model.masks import DenseMask, Mask, TiledMask

if TYPE_CHECKING:
    from windlass.train.model.config import ModelConfig

__all__ = ["TILE", "SlotCache", "SlotLayer", "allocate_again", "free_memory"]

TILE = 16
"""Tokens of a tile. Attention reads whole tiles: hidden keys add exact zeros, and vector units sum at most 16 float32 at a
time, so that a row's result does not depend on how many keys other rows need (tests/post/rollout/test_slots.py)."""


class SlotLayer:
    """Keys and values of a layer; layers with a window keep all tokens too."""

    def __init__(self, owner: SlotCache, keys_NBGSK: Tensor, values_NBGSK: Tensor) -> None:
        self._owner, self.keys_NBGSK, self.values_NBGSK = owner, keys_NBGSK, values_NBGSK

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens at each row's length; returns the keys and values that they see.

        Those are, for rows that begin, the new ones alone; for single tokens, whole tiles (N, B, G, S, K) as `TiledMask`
        has them; otherwise copies, (B, G, E, K).
        """
        step = self._owner.step
        step.write(self.keys_NBGSK, k_BGTK)
        step.write(self.values_NBGSK, v_BGTK)
        if step.start == 0:
            return k_BGTK, v_BGTK
        read = (slice(step.num_tiles), slice(step.num_rows))
        keys_NBGSK, values_NBGSK = self.keys_NBGSK[read], self.values_NBGSK[read]
        if step.width == 1:
            return keys_NBGSK, values_NBGSK
        return keys_NBGSK.permute(1, 2, 0, 3, 4).flatten(2, 3), values_NBGSK.permute(1, 2, 0, 3, 4).flatten(2, 3)


class _Step:
    """Places of the tokens of one forward.

    Attributes:
        num_rows: slots of the forward, from the first one on.
        start: first position of the tokens, if it is the same in all rows.
        num_tiles: tiles that hold the longest row after this forward.
        positions_BT: positions in the rows.
    """

    def __init__(self, starts: Sequence[int], width: int, device: torch.device) -> None:
        self.num_rows, self.start = len(starts), starts[0] if len(set(starts)) == 1 else None
        self.width, self.num_tiles = width, -(-(max(starts) + width) // TILE)
        firsts_B1 = torch.tensor(starts, device=device)[:, None]
        self.positions_BT = firsts_B1 if width == 1 else firsts_B1 + torch.arange(width, device=device)
        if self.start is None:
            places_BT = self.positions_BT
            self._rows_BT = torch.arange(len(starts), device=device)[:, None].expand(-1, width)
            self._tiles_BT, self._offsets_BT = places_BT // TILE, places_BT % TILE

    def write(self, store_NBGSK: Tensor, new_BGTK: Tensor) -> None:
        """Put the new tokens into their places."""
        if self.start is None:
            new_BTGK = new_BGTK.transpose(1, 2).to(store_NBGSK.dtype)
            store_NBGSK[self._tiles_BT, self._rows_BT, :, self._offsets_BT] = new_BTGK
            return
        done = 0
        while done < self.width:
            tile, offset = divmod(self.start + done, TILE)
            count = min(TILE - offset, self.width - done)
            store_NBGSK[tile, : self.num_rows, :, offset : offset + count] = new_BGTK[:, :, done : done + count]
            done += count


class SlotCache:
    """Fixed rows of keys and values with a length each; a `RowCache` of the decoder.

    A forward computes the first slots, as many as its counts, those of empty ones too.

    Attributes:
        lengths: tokens of each slot; 0 for empty ones.
    Memory: 2 * L * N * B * G * S * K values, allocated once.
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
        self.num_slots, self.device, self._dtype = num_slots, device, dtype
        self.max_length = max_length
        self.lengths = [0] * num_slots
        shape = (config.num_layers, 2, -(-max_length // TILE), num_slots, config.num_kv_heads, TILE, config.head_dim)
        # zeros, because a hidden value is still a factor: NaN times zero is NaN
        self._store_L2NBGSK = torch.zeros(shape, dtype=dtype, device=device)
        self.slots = {str(layer): SlotLayer(self, *pair) for layer, pair in enumerate(self._store_L2NBGSK)}
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
        """Prepare a forward of (`len(counts)`, `width`) tokens, of which the first `counts[row]` of a row are real.

        Padding is written behind a row's length, where nothing sees it and later tokens replace it.

        Raises:
            ValueError: a row has too few free positions.
        """
        longest = max(self.lengths[: len(counts)]) + width
        if longest > self.max_length:
            raise ValueError(f"{longest} tokens exceed the slots' length of {self.max_length}")
        self._counts = counts
        # rows without tokens write theirs where most others do: if all rows write at one place, it is a slice
        pairs = list(zip(self.lengths, counts, strict=False))
        common = max((length for length, count in pairs if count), default=0)
        starts = [length if count else max(length, common) for length, count in pairs]
        self._step = _Step(starts, width, self.device)

    def positions(self) -> Tensor:
        """Return the positions of this forward's tokens in their rows, int64 (B, T)."""
        return self.step.positions_BT

    def masks(self, windows: Collection[int | None]) -> Mapping[int | None, Mask]:
        """Return the mask of each window for this forward's tokens."""
        return {window: self._mask(window) for window in windows}

    def _mask(self, window: int | None) -> Mask:
        step = self.step
        num_keys = step.width if step.start == 0 else step.num_tiles * TILE
        if step.start == 0 and (window is None or window >= num_keys):
            return DenseMask(is_causal=True)
        back_BTE = step.positions_BT[:, :, None] - torch.arange(num_keys, device=self.device)
        seen_BTE = back_BTE >= 0
        if window is not None:
            seen_BTE &= back_BTE < window
        if step.start == 0 or step.width > 1:
            return DenseMask(is_causal=False, seen_BQS=seen_BTE, is_grouped=True)
        hidden_B1E = torch.zeros(seen_BTE.shape, dtype=self._dtype, device=self.device)
        return TiledMask(hidden_B1S=hidden_B1E.masked_fill_(~seen_BTE, float("-inf")))

    def advance(self, num_new: int) -> None:
        """End the forward: add each row's real tokens to its length."""
        assert num_new == self.step.width
        for row, count in enumerate(self._counts):
            self.lengths[row] += count
        self._step = None

    def reset(self, rows: Collection[int]) -> None:
        """Empty slots; costs nothing, their memory is overwritten later."""
        for row in rows:
            self.lengths[row] = 0

    def fork(self, source: SlotCache, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` tokens of the source's rows into slots, one or more slots for a row.

        Args:
            pairs: (row of the source, slot); neighbouring slots for one row are one copy. Lengths are those of the source's rows and at most `length`.
        """
        tiles, first = -(-length // TILE), 0
        while first < len(pairs):
            row, slot = pairs[first]
            count = 1
            while first + count < len(pairs) and pairs[first + count] == (row, slot + count):
                count += 1
            copies = self._store_L2NBGSK[:, :, :tiles, slot : slot + count]
            copies.copy_(source._store_L2NBGSK[:, :, :tiles, row : row + 1])
            first += count
        for row, slot in pairs:
            self.lengths[slot] = source.lengths[row]

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Move rows to other slots, given as (slot, other slot); their old slots are empty then."""
        self.fork(self, pairs, max(self.lengths[row] for row, _ in pairs))
        self.reset([row for row, _ in pairs])

    def tensors(self) -> list[Tensor]:
        """Return the memory of all layers."""
        return [self._store_L2NBGSK]

    def take_back(self) -> None:
        """Allocate memory that `free_memory` freed; all slots are empty afterwards."""
        allocate_again(self.tensors())
        self._store_L2NBGSK.zero_()
        self.lengths = [0] * self.num_slots

    def free(self) -> None:
        """Give the memory back; the slots cannot be used afterwards."""
        self.slots.clear()
        self._store_L2NBGSK = torch.zeros(0)
        self.lengths = [0] * self.num_slots


def free_memory(tensors: Iterable[Tensor]) -> None:
    """Free the memory of tensors, each a whole storage; they and their views keep their shapes. Idempotent."""
    for each in tensors:
        each.untyped_storage().resize_(0)


def allocate_again(tensors: Iterable[Tensor]) -> None:
    """Allocate the memory of tensors again, with arbitrary values. Does nothing for those that have it."""
    for each in tensors:
        if not each.untyped_storage().nbytes():
            each.untyped_storage().resize_(each.numel() * each.element_size())
