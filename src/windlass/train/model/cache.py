"""Cache of the keys and values of previous tokens, for generation.

Legend: B rows, G key and value heads, T new tokens, S kept tokens, K head size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from windlass.train.model.config import ModelConfig

if TYPE_CHECKING:
    from windlass.train.model.masks import Mask

__all__ = ["KVCache", "LayerCache", "LayerStore", "RowCache"]


class LayerStore(Protocol):
    """Keys and values of a layer."""

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add new tokens; returns the keys and values visible to them, including their own, (B, G, S, K)."""


@runtime_checkable
class RowCache(Protocol):
    """Cache whose rows have different lengths; it states where a forward's tokens are and what they see.

    Attributes:
        max_length: maximum number of tokens of a row.
        layers: stores by block name.
    """

    max_length: int
    layers: Mapping[str, LayerStore]

    def positions(self) -> Tensor:
        """Return the positions of this forward's tokens in their rows, int64 (B, T)."""

    def masks(self, windows: Collection[int | None]) -> Mapping[int | None, Mask]:
        """Return the mask of each window for this forward's tokens."""

    def advance(self, num_new: int) -> None:
        """End this forward, which added `num_new` tokens to each row, padding included."""


class LayerCache:
    """Cache of one layer's keys and values.

    A layer with a window keeps only those that the next token can see.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add new tokens; return the keys and values visible to them, their own included, (B, G, S, K).

        Allocates twice the memory needed now, so that most calls copy only the new tokens.
        """
        start, num_new = self._length, k_BGTK.shape[2]
        kept = start if self.window is None else min(start, self.window - 1)
        if self._keys is None or self._values is None or start + num_new > self._keys.shape[2]:
            self._keys = _moved(self._keys, k_BGTK, slice(start - kept, start))
            self._values = _moved(self._values, v_BGTK, slice(start - kept, start))
            start = kept
        new, seen = slice(start, start + num_new), slice(start - kept, start + num_new)
        self._keys[:, :, new], self._values[:, :, new] = k_BGTK, v_BGTK
        self._length = start + num_new
        return self._keys[:, :, seen], self._values[:, :, seen]


def _moved(old_BGSK: Tensor | None, new_BGTK: Tensor, keep: slice) -> Tensor:
    """Return a larger buffer that begins with the part of the old one to keep."""
    kept = keep.stop - keep.start
    rows, groups, num_new, size = new_BGTK.shape
    room_BGSK = new_BGTK.new_empty((rows, groups, 2 * (kept + num_new), size))
    if old_BGSK is not None:
        room_BGSK[:, :, :kept] = old_BGSK[:, :, keep]
    return room_BGSK


class KVCache:
    """Cache of keys and values for the tokens that a decoder has read.

    Attributes:
        length: number of tokens read.
        documents_BS: documents of the tokens; None if there is only one.
        layers: caches by block name.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.length = 0
        self.documents_BS: Tensor | None = None
        self.layers = {str(layer): LayerCache(config.window_of(layer)) for layer in range(config.num_layers)}

    def advance(self, num_new: int) -> None:
        """Count the tokens that a forward added."""
        self.length += num_new

    def join(self, documents_BT: Tensor | None) -> Tensor | None:
        """Return the document indices of all tokens, old and new; either all calls must pass them, or none."""
        if self.length and (documents_BT is None) != (self.documents_BS is None):
            raise ValueError(f"documents are given for only some of the tokens after {self.length}")
        if documents_BT is not None and self.documents_BS is not None:
            documents_BT = torch.cat((self.documents_BS, documents_BT), dim=1)
        self.documents_BS = documents_BT
        return documents_BT
