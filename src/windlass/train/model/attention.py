"""Causal self-attention with grouped queries.

Legend: B rows, T tokens, D width of the residual stream, H query heads, G key and value heads, K head size,
S visible tokens (more than T with a cache).
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.train.errors import TrainingError
from windlass.train.model.config import AttentionConfig
from windlass.train.model.layers import RMSNorm
from windlass.train.model.masks import (
    BlockwiseMask,
    DenseMask,
    Mask,
    PackedMask,
    TiledMask,
    blockwise_mask,
    branched_blocks,
    branched_mask,
    dense_mask,
    packed_mask,
)
from windlass.train.model.rope import Rotation, rotate

if TYPE_CHECKING:
    from windlass.train.model.cache import LayerStore
    from windlass.train.model.config import ModelConfig

__all__ = ["Attention", "Backend", "MaskTable", "attend", "choose_backend"]

MOST_KEPT = 16

Backend: TypeAlias = Literal["sdpa", "flex", "varlen"]


def choose_backend(
    config: AttentionConfig, device: torch.device, dtype: torch.dtype, *, has_documents: bool, has_cache: bool
) -> Backend:
    """Return the configured backend, or else the fastest one available for these masks.

    On a GPU: SDPA kernels for plain causal attention, varlen for documents and windows, flex for capped scores or
    float32. Otherwise, and with a cache: SDPA with dense masks.

    Raises:
        TrainingError: the configured backend does not support this device or model.
    """
    if has_cache:
        return "sdpa"
    if config.backend != "auto":
        obstacle = _obstacle(config.backend, config, device, dtype)
        if obstacle:
            raise TrainingError(
                f"attention backend `{config.backend}` {obstacle}",
                hint="set model.attention.backend=auto",
                code="unsupported-setting",
            )
        return config.backend
    is_plain = not has_documents and config.window is None and config.soft_cap is None
    if device.type != "cuda" or is_plain:
        return "sdpa"
    return "varlen" if not _obstacle("varlen", config, device, dtype) else "flex"


def _obstacle(backend: Backend, config: AttentionConfig, device: torch.device, dtype: torch.dtype) -> str:
    """Return why a backend is unavailable, or an empty string if it is available."""
    if backend == "sdpa":
        return ""
    if backend == "flex":
        is_trained = torch.is_grad_enabled() and device.type != "cuda"
        return f"has no gradients on {device.type}" if is_trained else ""
    if device.type != "cuda":
        return f"needs a GPU, and this is {device.type}"
    if not _has_varlen():
        return f"is not in torch {torch.__version__}, or does not support windows"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"needs bfloat16, and this is {str(dtype).removeprefix('torch.')}; set parallel.precision"
    return "does not support capped scores" if config.soft_cap is not None else ""


@functools.cache
def _has_varlen() -> bool:
    """Return whether torch has `varlen_attn` as in torch 2.13; its first version lacked windows and groups."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn  # lazy: torch may lack it

    return {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


class MaskTable:
    """Masks in the form that a backend needs.

    Masks that depend only on shapes are cached; others are built for each batch.
    """

    def __init__(self, config: AttentionConfig) -> None:
        self._config = config
        self._kept: dict[tuple[object, ...], Mask] = {}

    def take(
        self,
        windows: set[int | None],
        x_BTD: Tensor,
        documents_BT: Tensor | None = None,
        *,
        start: int = 0,
        documents_BS: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> dict[int | None, Mask]:
        """Return the mask for each window.

        Args:
            start: number of cached tokens; a layer with a window keeps fewer of them.
            documents_BS: documents of all tokens, cached ones included; None if there is no cache.
            positions_BT: positions, where document 0 of a row is a prompt that the others continue.
        """
        device, length = x_BTD.device, x_BTD.shape[1]
        if positions_BT is not None:
            assert documents_BT is not None
            make = branched_blocks if device.type == "cuda" else branched_mask
            return {window: make(documents_BT, positions_BT, window) for window in windows}
        has_documents = documents_BT is not None
        has_cache = start > 0 or documents_BS is not None
        backend = choose_backend(self._config, device, _dtype(x_BTD), has_documents=has_documents, has_cache=has_cache)
        if has_documents or has_cache:
            return {window: _make(backend, x_BTD, window, start, documents_BT, documents_BS) for window in windows}
        masks: dict[int | None, Mask] = {}
        for window in windows:
            key = (backend, window, length, device, x_BTD.shape[0] if backend == "varlen" else 0)
            if key not in self._kept:
                if self.num_kept >= MOST_KEPT:
                    self._kept.clear()
                # outside inference mode: autograd cannot use a mask created in it
                with torch.inference_mode(mode=False):
                    self._kept[key] = _make(backend, x_BTD, window, 0, None, None)
            masks[window] = self._kept[key]
        return masks

    @property
    def num_kept(self) -> int:
        """Number of cached masks, at most MOST_KEPT, because evaluations can use many sequence lengths."""
        return len(self._kept)


def _make(
    backend: Backend,
    x_BTD: Tensor,
    window: int | None,
    start: int,
    documents_BT: Tensor | None,
    documents_BS: Tensor | None,
) -> Mask:
    rows, length, device = x_BTD.shape[0], x_BTD.shape[1], x_BTD.device
    if backend == "varlen":
        return packed_mask(rows, length, window, device, documents_BT)
    if backend == "flex":
        return blockwise_mask(rows, length, window, device, documents_BT)
    num_keys = length + (start if window is None else min(start, window - 1))
    seen_BS = documents_BS if documents_BS is not None else documents_BT
    if seen_BS is not None:
        seen_BS = seen_BS[:, seen_BS.shape[1] - num_keys :]
    return dense_mask(length, num_keys, window, device, documents_BT, seen_BS)


def _dtype(x_BTD: Tensor) -> torch.dtype:
    kind = x_BTD.device.type
    is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast else x_BTD.dtype


class Attention(nn.Module):
    """Attention layer: projections, norms on queries and keys, rotary embeddings, attention, projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        own, size, groups = config.attention, config.head_dim, config.num_kv_heads
        self.head_dim = size
        self.scale = own.scale if own.scale is not None else size**-0.5
        self.soft_cap = own.soft_cap
        self.is_normed_per_head = own.qk_norm == "head"
        self.q = nn.Linear(config.d_model, own.num_heads * size, bias=own.bias)
        self.k = nn.Linear(config.d_model, groups * size, bias=own.bias)
        self.v = nn.Linear(config.d_model, groups * size, bias=own.bias)
        self.o = nn.Linear(own.num_heads * size, config.d_model, bias=False)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if own.qk_norm != "none":
            self.q_norm = RMSNorm(size if own.qk_norm == "head" else own.num_heads * size, eps=config.norm_eps)
            self.k_norm = RMSNorm(size if own.qk_norm == "head" else groups * size, eps=config.norm_eps)

    def forward(self, x_BTD: Tensor, rotation: Rotation | None, mask: Mask, cache: LayerStore | None = None) -> Tensor:
        """Attend over the given tokens and the cached ones, and add the given tokens to the cache."""
        q_BHTK = self._heads(self.q(x_BTD), self.q_norm)
        k_BGSK = self._heads(self.k(x_BTD), self.k_norm)
        v_BGSK = self._heads(self.v(x_BTD), None)
        if rotation is not None:
            q_BHTK, k_BGSK = rotate(q_BHTK, rotation), rotate(k_BGSK, rotation)
        if cache is not None:
            k_BGSK, v_BGSK = cache.extend(k_BGSK, v_BGSK)
        seen_BHTK = attend(q_BHTK, k_BGSK, v_BGSK, mask, scale=self.scale, soft_cap=self.soft_cap)
        out_BTD: Tensor = self.o(seen_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _heads(self, x_BTN: Tensor, norm: RMSNorm | None) -> Tensor:
        if norm is not None and not self.is_normed_per_head:
            x_BTN = norm(x_BTN)
        # -1, not the number of heads: with tensor parallelism, a process has only some of them
        x_BTHK: Tensor = x_BTN.unflatten(-1, (-1, self.head_dim))
        if norm is not None and self.is_normed_per_head:
            x_BTHK = norm(x_BTHK)
        return x_BTHK.transpose(1, 2)


def attend(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: Mask, *, scale: float, soft_cap: float | None
) -> Tensor:
    """Return softmax(q k^T * scale) v under the mask, (B, H, T, K); the mask's type selects the kernel."""
    if isinstance(mask, TiledMask):
        return _tiled(q_BHTK, k_BGSK, v_BGSK, mask, scale=scale, soft_cap=soft_cap)
    if isinstance(mask, PackedMask):
        return _packed(q_BHTK, k_BGSK, v_BGSK, mask, scale=scale)
    if isinstance(mask, BlockwiseMask):
        return _blockwise(q_BHTK, k_BGSK, v_BGSK, mask, scale=scale, soft_cap=soft_cap)
    if soft_cap is not None:
        return _capped(q_BHTK, k_BGSK, v_BGSK, mask, scale=scale, soft_cap=soft_cap)
    times = q_BHTK.shape[1] // k_BGSK.shape[1]
    if mask.seen_BQS is None:
        return F.scaled_dot_product_attention(
            q_BHTK, k_BGSK, v_BGSK, is_causal=mask.is_causal, scale=scale, enable_gqa=times > 1
        )
    if mask.is_grouped and times > 1:
        return _grouped(q_BHTK, k_BGSK, v_BGSK, mask.seen_BQS, scale=scale)
    # with a mask, GPU kernels need as many key heads as query heads
    k_BHSK, v_BHSK = _repeat(k_BGSK, times), _repeat(v_BGSK, times)
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask.seen_BQS[:, None], scale=scale)


def _grouped(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, seen_BQS: Tensor, *, scale: float) -> Tensor:
    """Attention in which the heads that share keys are further queries of one head, so that no key is copied."""
    groups, num_queries = k_BGSK.shape[1], q_BHTK.shape[2]
    q_BGNK = q_BHTK.unflatten(1, (groups, -1)).flatten(2, 3)
    seen_BNS = seen_BQS if num_queries == 1 else seen_BQS.repeat(1, q_BGNK.shape[2] // num_queries, 1)
    out_BGNK = F.scaled_dot_product_attention(q_BGNK, k_BGSK, v_BGSK, attn_mask=seen_BNS[:, None], scale=scale)
    out_BHTK: Tensor = out_BGNK.unflatten(2, (-1, num_queries)).flatten(1, 2)
    return out_BHTK


def _repeat(x_BGSK: Tensor, times: int) -> Tensor:
    return x_BGSK if times == 1 else x_BGSK[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


def _capped(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: DenseMask, *, scale: float, soft_cap: float
) -> Tensor:
    """Compute attention with soft-capped scores, all in memory, because no SDPA kernel supports a cap."""
    times = q_BHTK.shape[1] // k_BGSK.shape[1]
    k_BHSK, v_BHSK = _repeat(k_BGSK, times), _repeat(v_BGSK, times)
    scores_BHTS = soft_cap * torch.tanh(q_BHTK @ k_BHSK.transpose(-1, -2) * scale / soft_cap)
    if mask.seen_BQS is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask.seen_BQS[:, None], float("-inf"))
    elif mask.is_causal:
        seen_TS = torch.ones(scores_BHTS.shape[-2:], dtype=torch.bool, device=q_BHTK.device).tril()
        scores_BHTS = scores_BHTS.masked_fill(~seen_TS, float("-inf"))
    return scores_BHTS.softmax(dim=-1, dtype=_wide(scores_BHTS)).to(v_BHSK.dtype) @ v_BHSK


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _tiled(
    q_BH1K: Tensor, k_NBGTK: Tensor, v_NBGTK: Tensor, mask: TiledMask, *, scale: float, soft_cap: float | None
) -> Tensor:
    """Attention of one token of each row over tiles of keys.

    All sums are over a tile and then over tiles, and a hidden key adds an exact zero: a row's result does not depend on
    how many tiles the other rows need. Legend: N tiles of T keys, S = N * T, M = B * G, J = H / G queries that share keys.
    """
    rows, groups, size = k_NBGTK.shape[1:4]
    q_MJK = (q_BH1K * scale).reshape(rows * groups, -1, q_BH1K.shape[-1])
    scores_MJS = torch.cat([torch.bmm(q_MJK, k_MTK.transpose(1, 2)) for k_MTK in k_NBGTK.flatten(1, 2)], dim=-1)
    if soft_cap is not None:
        scores_MJS = soft_cap * torch.tanh(scores_MJS / soft_cap)
    scores_BHS = scores_MJS.view(rows, -1, scores_MJS.shape[-1]) + mask.hidden_B1S
    shares_MJS = scores_BHS.softmax(dim=-1, dtype=_wide(scores_BHS)).to(v_NBGTK.dtype).view(scores_MJS.shape)
    shares, values = shares_MJS.split(size, dim=-1), v_NBGTK.flatten(1, 2)
    seen_MJK = torch.bmm(shares[0], values[0])
    for shares_MJT, v_MTK in zip(shares[1:], values[1:], strict=True):
        seen_MJK = torch.baddbmm(seen_MJK, shares_MJT, v_MTK)
    return seen_MJK.view(q_BH1K.shape)


def _packed(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, mask: PackedMask, *, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # lazy: only used on a GPU

    q_NHK, k_NGK, v_NGK = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTK, k_BGTK, v_BGTK))
    out_NHK = varlen_attn(
        q_NHK,
        k_NGK,
        v_NGK,
        mask.bounds_N,
        mask.bounds_N,
        mask.longest,
        mask.longest,
        scale=scale,
        # its window counts only the previous tokens
        window_size=(-1 if mask.window is None else mask.window - 1, 0),
        enable_gqa=q_BHTK.shape[1] != k_BGTK.shape[1],
    )
    assert isinstance(out_NHK, Tensor)  # a tuple only with `return_aux`
    out_BTHK: Tensor = out_NHK.unflatten(0, (q_BHTK.shape[0], -1))
    return out_BTHK.transpose(1, 2)


def _blockwise(
    q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, mask: BlockwiseMask, *, scale: float, soft_cap: float | None
) -> Tensor:
    def capped(score: Tensor, _row: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        assert soft_cap is not None
        return soft_cap * torch.tanh(score / soft_cap)

    out_BHTK: Tensor = _flex_attention(q_BHTK.device.type)(
        q_BHTK,
        k_BGTK,
        v_BGTK,
        score_mod=None if soft_cap is None else capped,
        block_mask=mask.blocks,
        scale=scale,
        enable_gqa=q_BHTK.shape[1] != k_BGTK.shape[1],
    )
    return out_BHTK


@functools.cache
def _flex_attention(device_type: str) -> Callable[..., Any]:
    """Return flex attention, compiled on a GPU, where it would otherwise keep all scores in memory."""
    from torch.nn.attention.flex_attention import flex_attention  # lazy: 0.2 s, and only some machines use it

    if device_type == "cuda":
        return torch.compile(flex_attention)
    return flex_attention
