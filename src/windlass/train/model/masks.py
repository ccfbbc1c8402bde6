"""Attention masks: causal, within a window, within a document. Each has one of three forms, one per backend.

Legend: B rows, T tokens of a row, Q query tokens, S key tokens, N documents of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = [
    "BlockwiseMask",
    "DenseMask",
    "Mask",
    "PackedMask",
    "TiledMask",
    "blockwise_mask",
    "branched_blocks",
    "branched_mask",
    "dense_mask",
    "packed_mask",
]


@dataclass(frozen=True)
class DenseMask:
    """Mask for `scaled_dot_product_attention`.

    Attributes:
        is_causal: whether each token sees all previous ones; there is no tensor then.
        seen_BQS: bool, True where a query sees a key; B may be 1. None with `is_causal` False: every query sees every
            key, like a single token after a cache.
        is_grouped: attend without repeating keys for the queries that share them; for long caches.
    """

    is_causal: bool
    seen_BQS: Tensor | None = None
    is_grouped: bool = False


@dataclass(frozen=True)
class TiledMask:
    """Mask of one new token of each row over a cache in tiles: keys and values are (N, B, G, S / N, K) for N tiles.

    Attributes:
        hidden_B1S: added to scores: 0 where the token sees a key, minus infinity elsewhere.
    """

    hidden_B1S: Tensor


@dataclass(frozen=True)
class PackedMask:
    """Mask for `varlen_attn`: all rows' documents in sequence, given by int32 starts and the last end."""

    bounds_N: Tensor
    longest: int
    window: int | None


@dataclass(frozen=True)
class BlockwiseMask:
    """Mask for `flex_attention`."""

    blocks: BlockMask


Mask: TypeAlias = DenseMask | PackedMask | BlockwiseMask | TiledMask


def dense_mask(
    num_queries: int,
    num_keys: int,
    window: int | None,
    device: torch.device,
    documents_BQ: Tensor | None = None,
    documents_BS: Tensor | None = None,
) -> DenseMask:
    """Return the mask for the last `num_queries` of `num_keys` tokens.

    Costs O(Q * S) memory, for each row if documents differ; none if tokens see all previous ones.
    """
    is_whole = window is None or window >= num_keys
    if documents_BQ is None and is_whole and num_queries in (1, num_keys):
        return DenseMask(is_causal=num_queries > 1)
    keys_S = torch.arange(num_keys, device=device)
    queries_Q = keys_S[num_keys - num_queries :]
    back_QS = queries_Q[:, None] - keys_S[None, :]
    seen_QS = back_QS >= 0
    if window is not None and not is_whole:
        seen_QS &= back_QS < window
    if documents_BQ is None or documents_BS is None:
        return DenseMask(is_causal=False, seen_BQS=seen_QS[None])
    same_BQS = documents_BQ[:, :, None] == documents_BS[:, None, :]
    return DenseMask(is_causal=False, seen_BQS=same_BQS & seen_QS)


def branched_mask(documents_BT: Tensor, positions_BT: Tensor, window: int | None) -> DenseMask:
    """Return the mask of rows whose document 0 is a prompt that each other document continues.

    A token sees the previous ones of its document and of the prompt. A window counts positions, not places in the row.
    """
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    keys_B1T = documents_BT[:, None, :]
    seen_BTT = (places_T[:, None] >= places_T) & ((documents_BT[:, :, None] == keys_B1T) | (keys_B1T == 0))
    if window is not None:
        seen_BTT &= positions_BT[:, :, None] - positions_BT[:, None, :] < window
    return DenseMask(is_causal=False, seen_BQS=seen_BTT)


def packed_mask(
    num_rows: int, length: int, window: int | None, device: torch.device, documents_BT: Tensor | None = None
) -> PackedMask:
    """Return document bounds.

    With documents, this waits for the device, since their number determines a shape.
    """
    ends = torch.arange(0, num_rows * length + 1, length, dtype=torch.int32, device=device)
    if documents_BT is not None:
        is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
        is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
        starts_N = is_first_BT.flatten().nonzero()[:, 0].to(torch.int32)
        ends = torch.cat((starts_N, ends[-1:]))
    return PackedMask(bounds_N=ends, longest=length, window=window)


def blockwise_mask(
    num_rows: int, length: int, window: int | None, device: torch.device, documents_BT: Tensor | None = None
) -> BlockwiseMask:
    """Return blocks of tokens that can see each other.

    Compiled on a GPU, so that all pairs are never in memory.
    """

    def is_seen(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        if window is not None:
            seen = seen & (query - key < window)
        if documents_BT is not None:
            seen = seen & (documents_BT[row, query] == documents_BT[row, key])
        return seen

    return _blocks(is_seen, num_rows if documents_BT is not None else None, length, device)


def branched_blocks(documents_BT: Tensor, positions_BT: Tensor, window: int | None) -> BlockwiseMask:
    """Return the same as `branched_mask`, as blocks of tokens that can see each other."""

    def is_seen(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = documents_BT[row, key]
        seen = (query >= key) & ((documents_BT[row, query] == own) | (own == 0))
        if window is not None:
            seen = seen & (positions_BT[row, query] - positions_BT[row, key] < window)
        return seen

    return _blocks(is_seen, documents_BT.shape[0], documents_BT.shape[1], documents_BT.device)


def _blocks(is_seen: Callable[..., Tensor], rows: int | None, length: int, device: torch.device) -> BlockwiseMask:
    from torch.nn.attention.flex_attention import create_block_mask  # lazy: 0.2 s, and only some machines use it

    make = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    return BlockwiseMask(blocks=make(is_seen, rows, None, length, length, device=device))
